"""The package as a user installs it."""

import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

import lastword
from lastword.embedded import EMBEDDED

ROOT = Path(__file__).parent.parent
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "README.md")
QUESTION = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
ASKED = ("generate", QUESTION, "--model", "tiny-llada-base", "--length", "fixed:48", "--json")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_needs_no_torch_and_starts_fast():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert python("-m", "lastword", "--help").returncode == 0
        times.append(time.perf_counter() - began)
    assert min(times) < 1.0
    probe = "import sys, lastword.cli; print('torch' in sys.modules)"
    assert python("-c", probe).stdout.strip() == "False"


def test_every_public_name_is_there():
    for name in lastword.__all__:
        assert getattr(lastword, name) is not None


def test_functions_keep_their_names_whatever_is_imported_first():
    probe = (
        "import lastword.generation, lastword.decode, lastword; "
        "print(callable(lastword.generate), callable(lastword.decode))"
    )
    assert python("-c", probe).stdout.split() == ["True", "True"]


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


def test_the_wheel_carries_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "lastword/py.typed" in names
    assert all(name.startswith(("lastword/", "lastword-")) for name in names)
    assert not [name for name in names if name.endswith(".pyc")]
    for model in EMBEDDED:
        assert {f"lastword/embedded/{model}/{file}" for file in MODEL_FILES} <= {*names}


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
