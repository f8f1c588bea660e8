"""What a release says of itself agrees, and its workflows run commands that there are."""

import re
from datetime import date
from pathlib import Path

import pytest

import lastword

yaml = pytest.importorskip("yaml", reason="needs the package pyyaml")

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_changelog_has_the_next_version_above_this_one():
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+ - unreleased", headings[0])
    assert headings[1] == f"{lastword.__version__} - {CITATION['date-released']}"


def test_the_citation_is_of_this_version_and_names_the_paper():
    assert CITATION["version"] == lastword.__version__
    assert isinstance(CITATION["date-released"], date)
    assert f'license = "{CITATION["license"]}"' in PROJECT
    asked = {"cff-version", "message", "title", "authors", "type"}
    assert asked <= set(CITATION)
    (paper,) = CITATION["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Kobyzev", "Ghaddar", "Cui"]
    (number,) = [one["value"].removeprefix("arXiv:") for one in paper["identifiers"]]
    assert paper["url"] == f"https://arxiv.org/abs/{number}"


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_every_project_is_read_at_a_commit():
    """docs/comparison.md: every link of a table's cell is defined, and stays what was read."""
    page = (ROOT / "docs" / "comparison.md").read_text()
    defined = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", page, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]+)\]", page)) == set(defined)
    for address in defined.values():
        assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/blob/[0-9a-f]{40}/\S+", address)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {8}
    for row in rows[2:]:  # below the head and what each is for
        for cell in row.split("|")[2:-1]:
            assert "](" in cell or "][" in cell or cell.strip() in ("none", "no"), cell
    assert len(page.splitlines()) < 60


def workflows() -> dict[str, dict]:
    if not WORKFLOWS.exists():
        pytest.skip("a source distribution has no workflows")
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(WORKFLOWS.glob("*.yml"))}


def commands(workflow: dict) -> list[str]:
    return [
        line.strip()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]


def test_workflows_run_what_there_is():
    found = [line for workflow in workflows().values() for line in commands(workflow)]
    targets = {line.split()[1] for line in found if line.startswith("make ")}
    assert targets == {"dist", "docs"}
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"there is no make {target}"
    (tests,) = [line for line in found if line.startswith(".ci/")]
    assert (ROOT / tests).stat().st_mode & 0o111


def test_every_change_is_tested_and_installed_on_every_promised_python():
    ci = workflows()["ci"]
    assert {"push", "pull_request"} == set(ci[True])  # YAML takes `on` for a truth value
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert ci["jobs"]["install"]["strategy"]["matrix"]["python"] == promised
    (setup,) = [
        step["with"]["python-version"].split()
        for step in ci["jobs"]["test"]["steps"]
        if "setup-python" in step.get("uses", "")
    ]
    assert sorted(setup) == promised
    (line,) = [line for line in commands(ci) if "--dry-run" in line]
    extras = re.findall(r"^(\w+) = \[", PROJECT.split("[project.optional-dependencies]")[1], re.M)
    wanted = {name for name in extras[: extras.index("dev")] if name != "docs"}
    assert set(re.search(r"\[(.*)\]", line)[1].split(",")) == wanted


def test_nothing_is_published_by_accident():
    found = workflows()
    assert found["release"][True] == {"push": {"tags": ["v*"]}}
    for workflow in found.values():
        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())
        used = [step.get("uses", "") for job in workflow["jobs"].values() for step in job["steps"]]
        assert not [one for one in used if "publish" in one]
        assert not [line for line in commands(workflow) if "upload" in line]
