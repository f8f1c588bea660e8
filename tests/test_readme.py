"""README and docs say what is true: links lead somewhere, and the commands run."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.warm import warm_interpreter

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Examples that need a server, or files that their page shows: tests/serve and tests/batch run them.
ASKING = ("serve.md", "operate.md", "batch.md")
EVALUATION = (ROOT / "docs" / "use" / "evaluate.md").read_text()


@pytest.fixture(scope="module")
def run():
    """Run an example, or the words of a command, in a plain interpreter; return its standard output."""
    with warm_interpreter() as warm:

        def run(*words, code=None):
            status, out, err = warm(ROOT, *words, code=code, stdin=b"abc")
            assert status == 0, err
            return out

        yield run


def code_blocks(language: str) -> list[tuple[str, str, str | None]]:
    """Page, code that is run, and what the page shows below it as printed, if anything."""
    shape = re.compile(rf"(<!-- not run: .*? -->\n)?```{language}\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
    return [
        (page.name, code, printed or None)
        for page in PAGES
        if page.name not in ASKING
        for not_run, code, printed in shape.findall(page.read_text())
        if not not_run
    ]


def python_examples() -> list[object]:
    """Those that start workers take their time."""
    return [
        pytest.param(*example, marks=[pytest.mark.full] * ("workers=" in example[1]))
        for example in code_blocks("python")
    ]


@pytest.mark.parametrize(("page", "block", "printed"), python_examples())
def test_python_examples_run(page, block, printed, run):
    if re.search(r"^[^#\n]*(GSAI-ML|Dream-org)/", block, re.MULTILINE):  # a comment may name them
        compile(block, page, "exec")  # the real weights are 16 GB: checked for syntax only
        return
    out = run(code=block)
    assert printed in (None, out)


def first_evaluation() -> list[str]:
    return re.search(r"```bash\n(.*?)```", EVALUATION, re.DOTALL)[1].splitlines()


def shell_commands() -> list[object]:
    """All but the first evaluation, which has a test of its own."""
    commands: list[object] = []
    for page, block, _ in code_blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("lastword ") and "GSAI-ML/" not in line and "Dream-org/" not in line:
                every_record = "benchmarks/records" in line  # most of a minute
                several = "--workers" in line  # processes that each load torch
                slow = every_record or several or page == "command-line.md"  # every command there is
                marks = [pytest.mark.full] if slow else []
                commands += [pytest.param(line, marks=marks)] * (line not in first_evaluation())
    return commands


@pytest.mark.parametrize("command", shell_commands())
def test_commands_run(command, run):
    run(*shlex.split(command, comments=True)[1:])


@pytest.mark.full
def test_the_first_evaluation_ends_as_its_page_says(tmp_path, run):
    """All but the seconds, which are another machine's."""
    shown = re.search(r"```text\n(.*?)```", EVALUATION, re.DOTALL)[1]
    for command in first_evaluation():
        printed = run(*shlex.split(command)[1:], "--out", str(tmp_path), "--device", "cpu")
    assert [line.rsplit("|", 2)[0] for line in printed.splitlines()] == [
        line.rsplit("|", 2)[0] for line in shown.splitlines()
    ]


# ---- links ----


def prose(page: Path) -> str:
    """A page without its code: what stands there is no link and no heading."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Where a link into the page may lead: its headings as GitHub names them, and names of the code."""
    text, found = prose(page), []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    again = [f"{name}-{nth}" for name in set(found) for nth in range(1, found.count(name))]
    return {*found, *again, *re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


def links(page: Path) -> list[tuple[str, str]]:
    """Where a page's links lead within the repository: a path and an anchor, either of them empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(page))
    return [(path, anchor) for path, anchor in found if "://" not in path]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            known = anchors(target)
            assert anchor in known, f"{page.name} links to {path}#{anchor}; known: {sorted(known)}"


def test_a_link_is_looked_at_and_code_is_not(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three?\n\n[a](#one-two-three) [b](other.md#x)\n```text\n[c](no)\n```\n")
    assert links(page) == [("", "one-two-three"), ("other.md", "x")]
    assert anchors(page) == {"one-two-three"}
