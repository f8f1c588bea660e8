"""The package as a user installs it."""

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import lastword
from lastword.embedded import EMBEDDED
from tests.test_pythons import PROMISED, interpreter

ROOT = Path(__file__).parent.parent
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "README.md")
QUESTION = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
ASKED = ("generate", QUESTION, "--model", "tiny-llada-base", "--length", "fixed:48", "--json")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


HELP = """
import runpy, sys
sys.argv = ["lastword", "--help"]
try:
    runpy.run_module("lastword", run_name="__main__")
except SystemExit as end:
    assert not end.code
print(sorted({"torch", "numpy", "tokenizers", "jaxtyping", "jinja2"} & {*sys.modules}))
"""


def test_help_loads_nothing_heavy():
    run = python("-c", HELP)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


def test_every_public_name_is_there():
    for name in lastword.__all__:
        assert getattr(lastword, name) is not None


def test_a_submodule_of_evaluation_is_reached_without_an_import():
    assert lastword.evaluate.Journal.__module__ == "lastword.evaluate.journal"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'langth'"):
        lastword.langth  # noqa: B018


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = python(
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(folder), str(ROOT)),
    )
    assert build.returncode == 0, build.stderr
    return next(folder.glob("lastword-*.whl"))


@pytest.mark.full
def test_the_wheel_carries_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "lastword/py.typed" in names
    assert all(name.startswith(("lastword/", "lastword-")) for name in names)
    assert not [name for name in names if name.endswith(".pyc")]
    for model in EMBEDDED:
        assert {f"lastword/embedded/{model}/{file}" for file in MODEL_FILES} <= {*names}


@pytest.fixture(scope="module")
def page(wheel) -> str:
    """What a package index shows: the long description in the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Version"] == lastword.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"
    return metadata.get_payload(decode=True).decode()


@pytest.mark.full
def test_the_page_at_an_index_leads_to_nothing_that_is_not_there(page):
    """Links to files are their names in brackets, and pictures are left out."""
    targets = re.findall(r"\]\(([^)\s]*)", page)
    targets += re.findall(r"(?:src|href|srcset)=[\"']([^\"']*)", page)
    assert [target for target in targets if not target.startswith("https://")] == []
    readme = (ROOT / "README.md").read_text()
    assert page.count("\n## ") == readme.count("\n## ")
    assert page.count("```") == readme.count("```")
    linked = re.findall(r"(?<!!)\[[^\]]+\]\((?!https://)([^)]+)\)", readme)
    assert linked
    assert [name for name in linked if name not in page] == []


@pytest.mark.full
def test_an_index_would_take_both_files(wheel, sdist):
    """`twine check` renders the page as the index does and refuses what it would refuse."""
    pytest.importorskip("twine", reason="needs the package twine")
    run = python("-m", "twine", "--no-color", "check", "--strict", str(wheel), str(sdist))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("PASSED") == 2


@pytest.mark.full
def test_the_wheel_runs_in_a_clean_environment(wheel, tmp_path):
    """Installed for itself; its dependencies are lent by a path file, not copied."""
    venv.create(tmp_path / "env", with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    lent = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (site / "lent.pth").write_text(f"{lent}\n")
    run = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-m", "lastword", *ASKED],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert '"model": "tiny-llada-base"' in run.stdout
    assert "The final answer is" in run.stdout


ABOUT = """
from importlib.metadata import entry_points, metadata
import lastword
(command,) = entry_points(group="console_scripts", name="lastword")
print(lastword.__version__, metadata("lastword")["Version"], command.value)
"""


@pytest.mark.full
@pytest.mark.parametrize("version", PROMISED)
def test_the_wheel_installs_on_every_promised_python(version, wheel, tmp_path):
    """By that Python's own pip; without its dependencies, which would have to be fetched."""
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "env"], check=True)
    own = str(tmp_path / "env" / "bin" / "python")
    for command in (["-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], ["-c", ABOUT]):
        run = subprocess.run([own, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert run.returncode == 0, run.stderr
    number = lastword.__version__
    assert run.stdout.split() == [number, number, "lastword.cli:main"]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return next(folder.glob("lastword-*.tar.gz"))


@pytest.fixture(scope="module")
def source(sdist, tmp_path_factory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.mark.full
def test_the_source_distribution_brings_all_that_its_tests_import(source):
    """It is collected where nothing of this repository is in sight."""
    for name in (
        "Makefile", "constraints.txt", "CONTRIBUTING.md", "CITATION.cff", "SECURITY.md",
        "training/tiny-llada-base.toml", "examples/first_answer.py", "examples/lengths.ipynb",
    ):  # fmt: skip
        assert (source / name).is_file(), name
    probe = "import lastword, training, benchmarks; print(lastword.__file__, training.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    for command in (["-c", probe], ["-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]):
        run = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=source, env=environment, check=False
        )
        assert run.returncode == 0, run.stdout[-3000:]
        assert str(ROOT) not in run.stdout
