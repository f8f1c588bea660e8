"""README and docs say what is true: links lead somewhere, and the commands run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def code_blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL):
            found.append((page.name, block))
    return found


@pytest.mark.parametrize(("page", "block"), code_blocks("python"))
def test_python_examples_run(page, block, tmp_path):
    if re.search(r"^[^#\n]*(GSAI-ML|Dream-org)/", block, re.MULTILINE):  # a comment may name them
        compile(block, page, "exec")  # the real weights are 16 GB: checked for syntax only
        return
    run = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert run.returncode == 0, run.stderr


def shell_commands() -> list[str]:
    commands = []
    for _, block in code_blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("lastword ") and "GSAI-ML/" not in line and "Dream-org/" not in line:
                commands.append(line)
    return commands


@pytest.mark.parametrize("command", shell_commands())
def test_commands_run(command, tmp_path):
    words = shlex.split(command, comments=True)
    run = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        input="abc",
    )
    assert run.returncode == 0, run.stderr


def test_the_first_evaluation_ends_as_its_page_says(tmp_path):
    """All but the seconds, which are another machine's."""
    page = (ROOT / "docs" / "evaluate.md").read_text()
    commands = re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1].splitlines()
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    for command in commands:
        words = [*shlex.split(command), "--out", str(tmp_path), "--device", "cpu"]
        run = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
    assert [line.rsplit("|", 2)[0] for line in run.stdout.splitlines()] == [
        line.rsplit("|", 2)[0] for line in shown.splitlines()
    ]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
