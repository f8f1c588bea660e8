"""Every Python that pyproject.toml promises reads all of the code, and imports what needs no torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
PROMISED = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
FOLDERS = ("lastword", "training", "benchmarks", "examples", "tests")

# What the command line needs before it does anything; pure Python, so any version may borrow it.
LENT = ("typer", "click", "rich", "pygments", "markdown-it-py", "mdurl", "shellingham",
        "typing-extensions", "annotated-doc")  # fmt: skip
# Dependencies and extras as they are imported, what they bring, and ourselves.
KNOWN = {
    *(name.replace("-", "_") for name in re.findall(r'"([\w-]+)(?:\[[\w,]+\])?[<>=]=', PROJECT)),
    *("PIL", "_pytest", "click", "datasets", "evaluate", "nbformat", "transformers", "yaml"),
    *FOLDERS,
}

# Run by the other Python. Prints what is wrong, and which modules it could import.
READ = """
import ast, importlib, json, sys
from pathlib import Path

files, known = json.loads(sys.stdin.read())
wrong, imported = [], []

def guarded(node):
    return isinstance(node, ast.If) and "version_info" in ast.unparse(node.test)

def unguarded(node):
    for child in ast.iter_child_nodes(node):
        if not guarded(child):
            yield child
            yield from unguarded(child)

for path in files:
    tree = ast.parse(Path(path).read_bytes(), path)
    compile(tree, path, "exec")
    for node in unguarded(tree):
        if isinstance(node, ast.Import):
            asked = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            asked = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in asked:
            top = module.split(".")[0]
            if top in known:
                continue
            if top not in sys.stdlib_module_names:
                wrong.append(f"{path}: {module} is neither declared nor in this Python")
            elif name and not hasattr(importlib.import_module(module), name):
                wrong.append(f"{path}: {module} of this Python has no {name}")

for path in files:
    if path.startswith(("tests", "examples")) or path.endswith("__main__.py"):
        continue
    module = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(module)
        imported.append(module)
    except ModuleNotFoundError as missing:
        if missing.name.split(".")[0] not in known:
            wrong.append(f"{module}: {missing}")

print(json.dumps([wrong, imported]))
"""


def interpreter(version: str) -> str:
    """A Python of that version: this one, one on the PATH, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable, shutil.which(f"python{version}")]
    found += [str(path) for path in kept.glob(f"{version}.*/bin/python3")]
    for path in filter(None, found):
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        if said.strip() == version:
            return path
    pytest.skip(f"needs the program python{version}")


@pytest.fixture(scope="module")
def lent(tmp_path_factory) -> Path:
    """A folder with nothing in it but what the command line borrows."""
    folder = tmp_path_factory.mktemp("lent")
    for name in LENT:
        files = {file.parts[0] for file in distribution(name).files if ".." not in file.parts}
        for top in files - {"__pycache__"}:
            (folder / top).symlink_to(distribution(name).locate_file(top))
    return folder


@pytest.fixture(params=PROMISED)
def in_python(request, lent):
    """Runs arguments in a promised Python that sees the repository and what was lent, nothing more."""
    python = interpreter(request.param)

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-S", "-B", *arguments],
            capture_output=True,
            text=True,
            input=given,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}:{lent}", "PATH": os.environ["PATH"]},
            check=False,
        )

    return run


def test_it_reads_every_file_and_imports_what_needs_no_torch(in_python):
    files = [str(path.relative_to(ROOT)) for top in FOLDERS for path in (ROOT / top).rglob("*.py")]
    run = in_python("-c", READ, given=json.dumps([sorted(files), sorted(KNOWN)]))
    assert run.returncode == 0, run.stderr
    wrong, imported = json.loads(run.stdout)
    assert wrong == []
    assert {"lastword", "lastword.cli", "lastword.sandbox", "lastword.tasks"} <= {*imported}


def test_the_command_line_starts(in_python):
    run = in_python("-m", "lastword", "--help")
    assert run.returncode == 0, run.stderr
    assert "generate" in run.stdout


def test_an_answer_is_scored(in_python):
    """Frozen prompts, a scorer and the sandbox need no torch."""
    program = (
        "from lastword.tasks import FAMILIES, load_frozen\n"
        "for name in ('algebra', 'write_function'):\n"
        "    example, *_ = load_frozen('test', name)\n"
        "    assert FAMILIES[name].score(example, example.answer)\n"
    )
    run = in_python("-c", program)
    assert run.returncode == 0, run.stderr
