"""A Python somewhere else, with packages beside its library: as root and as nobody, at every level."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import lastword
from lastword.sandbox.inside import seccomp
from lastword.sandbox.sight import Sight, sight
from tests.sandbox import test_walls as walls

VERSION = f"python3.{sys.version_info.minor}"
ANSWERS = "the frozen answers"
# Runs each program at each level that works, and prints verdict and detail.
SCORER = """
import json, sys
from lastword.errors import SandboxError
from lastword.sandbox import Level
from lastword.sandbox.runner import run_one
found = {}
for level in sys.argv[2].split():
    for name, program in json.loads(sys.argv[1]).items():
        try:
            outcome = run_one(program, Level(level))
            found[f"{level} {name}"] = [outcome.verdict.value, outcome.detail]
        except SandboxError as missing:
            found[f"{level} {name}"] = ["not judged", str(missing)]
print(json.dumps(found))
"""


def linked(source, target, ignore=()):
    """A copy of a tree in links, where the file system has them."""

    def link(old, new):
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)

    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns("__pycache__", *ignore))


def beside_its_library(program, prefix):
    """A program that looks for libpython in its own prefix, and no longer where it was built."""
    built = sysconfig.get_config_var("LIBDIR").encode() + b"\0"
    moved = b"$ORIGIN/../lib".ljust(len(built), b"\0")
    if built not in program or len(moved) > len(built):
        pytest.skip("this Python finds its library in a way that cannot be moved")
    for path in Path(sysconfig.get_config_var("LIBDIR")).glob("libpython*.so*"):
        shutil.copy2(path, prefix / "lib")
    return program.replace(built, moved)


@pytest.fixture(scope="module")
def python():
    """An interpreter of its own under /tmp, with a package that holds answers, and our sources."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        prefix = Path(folder) / "python"
        library = prefix / "lib" / VERSION
        left_out = ("site-packages", "dist-packages", "test", "config-*", "idlelib", "ensurepip")
        linked(sysconfig.get_path("stdlib"), library, left_out)
        (prefix / "bin").mkdir()
        program = Path(os.path.realpath(sys.executable)).read_bytes()
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            program = beside_its_library(program, prefix)
        (prefix / "bin" / VERSION).write_bytes(program)
        (prefix / "bin" / VERSION).chmod(0o755)
        package = library / "site-packages" / "frozen"
        package.mkdir(parents=True)
        (package / "answers.txt").write_text(ANSWERS)
        (package / "__init__.py").write_text(f"ANSWERS = {ANSWERS!r}")
        ours = Path(lastword.__file__).parent
        shutil.copytree(ours / "sandbox", Path(folder) / "ours" / "lastword" / "sandbox")
        for path in ours.glob("*.py"):
            shutil.copy2(path, Path(folder) / "ours" / "lastword")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield prefix


@pytest.fixture(params=["root", "nobody"])
def score(request, python):
    """What becomes of programs, scored by that interpreter as that user."""
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("only root can be root; the other case is this user's")
    other = request.param == "nobody" and os.geteuid() == 0
    user = {"user": 65534, "group": 65534, "extra_groups": []} if other else {}
    levels = "none" if shutil.which("bwrap") is None else "none bubblewrap"
    return lambda **programs: json.loads(
        subprocess.run(
            [python / "bin" / VERSION, "-c", SCORER, json.dumps(programs), f"{levels} namespaces"],
            env={"PYTHONPATH": str(python.parent / "ours"), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            timeout=120,
            check=True,
            cwd="/",
            **user,
        ).stdout
    )


def test_a_python_under_the_temporary_folder_works_and_shows_no_package(score, python):
    package = f"{python}/lib/{VERSION}/site-packages"
    found = score(
        works="import decimal, json, tempfile\ntempfile.TemporaryFile().write(b'1')",
        reads=f"print(open('{package}/frozen/answers.txt').read())",
        imports=f"import sys\nsys.path.append('{package}')\nimport frozen\nprint(frozen.ANSWERS)",
        starts="import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', "
        "'import frozen; print(frozen.ANSWERS)'], text=True))",
        writes=f"open('{package}/new', 'w')",
    )
    for case, (verdict, detail) in found.items():
        assert verdict == ("passed" if case.endswith("works") else "failed"), (case, detail)
        assert ANSWERS not in detail
    assert (python / "lib" / VERSION / "site-packages" / "frozen" / "answers.txt").exists()


def test_packages_are_hidden_under_every_name_of_their_folder(tmp_path, monkeypatch):
    library = tmp_path / "real" / "lib" / VERSION
    (library / "site-packages" / "inner" / "dist-packages").mkdir(parents=True)
    (library / "json").mkdir()
    (library / "os.py").touch()
    (tmp_path / "other").symlink_to(tmp_path / "real")
    monkeypatch.setattr("lastword.sandbox.sight.SYSTEM", (f"{tmp_path}/other",))
    seen = sight(f"{tmp_path}/real")
    assert set(seen.hidden) >= {
        f"{tmp_path}/{name}/lib/{VERSION}/site-packages" for name in ("real", "other")
    }
    assert not any(path.endswith("inner/dist-packages") for path in seen.hidden)
    mine = {path: kind for path, kind in seen.around.items() if path.startswith(f"{library}/")}
    assert mine == {f"{library}/json": "tree", f"{library}/os.py": "file"}
    sight.cache_clear()


def test_our_own_package_is_hidden_wherever_it_lies(monkeypatch):
    ours = Path(lastword.__file__).parent
    sight.cache_clear()
    monkeypatch.setattr("lastword.sandbox.sight.SYSTEM", (str(ours.parent),))
    assert str(ours) in sight(sys.base_prefix).hidden
    sight.cache_clear()


def test_nothing_hidden_is_a_whole_tree():
    assert Sight(("/usr",), ()).around == {"/usr": "tree"}


@pytest.mark.parametrize("score", ["nobody"], indirect=True)
def test_the_walls_hold_for_an_ordinary_user_too(score, python):
    """Without root there is no other user to become: what is open to the user must be closed otherwise."""
    if walls.WHICH is None:
        pytest.skip(f"there is no seccomp filter for {walls.MACHINE}")
    numbers = {name: numbers[walls.WHICH] for name, numbers in seccomp._NEVER.items()}
    reach = {
        name: walls.CALL + program.format(**numbers, clone=seccomp._CLONE[walls.WHICH])
        for name, program in walls.WITHIN_REACH.items()
    }
    keys = {
        f"keys of ring {ring}": f"{walls.CALL}call({numbers['keyctl']}, 0, {ring}, 0)"
        for ring in (-3, -4, -5)
    }
    disk = {"disk": walls.FILL.format(then=""), "token": walls.DRAIN}
    found = score(**reach, **keys, **disk)
    assert {verdict for verdict, _ in found.values()} == {"failed"}, found
    for case, (_, detail) in found.items():
        if not case.endswith((" disk", " token")):
            assert "Operation not permitted" in detail, (case, detail)
    honest = score(closed=walls.NESTED["closed"], copies=walls.HONEST["copies"])
    assert {verdict for verdict, _ in honest.values()} == {"passed"}, honest
