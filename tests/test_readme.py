"""README and docs say what is true: links lead somewhere, and the commands run."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Examples that need a server, or files that their page shows: tests/serve and tests/batch run them.
ASKING = ("serve.md", "operate.md", "batch.md")
EVALUATION = (ROOT / "docs" / "use" / "evaluate.md").read_text()

# Imports once what every example imports, then gives each job, code or the words of a command, a child
# of its own: nothing one of them does reaches the next.
RUNNER = """
import json, os, signal, sys, tempfile, traceback
import lastword, lastword.generation, lastword.cli

def work(job):
    if isinstance(job, str):
        sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(job, "<example>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = job
        lastword.cli.main()

jobs = os.fdopen(os.dup(0))
for line in jobs:
    typed, out, err = (tempfile.TemporaryFile() for _ in range(3))
    typed.write(b"abc")
    typed.seek(0)
    child = os.fork()
    if child == 0:
        signal.alarm(180)  # an example that does not end fails
        for number, file in enumerate((typed, out, err)):
            os.dup2(file.fileno(), number)
        sys.stdin = os.fdopen(0)
        status = 0
        try:
            work(json.loads(line))
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, ending = os.waitpid(child, 0)
    said = [os.waitstatus_to_exitcode(ending)]
    for file in (out, err):
        file.seek(0)
        said.append(file.read().decode())
    print(json.dumps(said), flush=True)
"""


@pytest.fixture(scope="module")
def run():
    """Runs an example, or the words of a command, in a plain interpreter; gives what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
    )

    def one(job: str | list[str]) -> str:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        status, out, err = json.loads(process.stdout.readline())
        assert status == 0, err
        return out

    yield one
    process.communicate()


def code_blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in (page for page in PAGES if page.name not in ASKING):
        shown = re.findall(
            rf"(<!-- not run: .*? -->\n)?```{language}\n(.*?)```", page.read_text(), re.DOTALL
        )
        found += [(page.name, block) for not_run, block in shown if not not_run]
    return found


@pytest.mark.parametrize(("page", "block"), code_blocks("python"))
def test_python_examples_run(page, block, run):
    if re.search(r"^[^#\n]*(GSAI-ML|Dream-org)/", block, re.MULTILINE):  # a comment may name them
        compile(block, page, "exec")  # the real weights are 16 GB: checked for syntax only
        return
    run(block)


def first_evaluation() -> list[str]:
    return re.search(r"```bash\n(.*?)```", EVALUATION, re.DOTALL)[1].splitlines()


def shell_commands() -> list[object]:
    """All but the first evaluation, which has a test of its own."""
    commands: list[object] = []
    for _, block in code_blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("lastword ") and "GSAI-ML/" not in line and "Dream-org/" not in line:
                every_record = "benchmarks/records" in line  # most of a minute
                marks = [pytest.mark.full] if every_record else []
                commands += [pytest.param(line, marks=marks)] * (line not in first_evaluation())
    return commands


@pytest.mark.parametrize("command", shell_commands())
def test_commands_run(command, run):
    run(shlex.split(command, comments=True))


@pytest.mark.full
def test_the_first_evaluation_ends_as_its_page_says(tmp_path, run):
    """All but the seconds, which are another machine's."""
    shown = re.search(r"```text\n(.*?)```", EVALUATION, re.DOTALL)[1]
    for command in first_evaluation():
        printed = run([*shlex.split(command), "--out", str(tmp_path), "--device", "cpu"])
    assert [line.rsplit("|", 2)[0] for line in printed.splitlines()] == [
        line.rsplit("|", 2)[0] for line in shown.splitlines()
    ]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
