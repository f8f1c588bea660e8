"""Where nothing may be missing, a skip that installing something would have avoided is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OPTIONS = ("-p", "no:cacheprovider", "--continue-on-collection-errors", "-c", os.devnull)
PROGRAM = """
import pytest

def test_program():
    pytest.skip("needs the program bwrap: install bubblewrap")

def test_machine():
    pytest.skip("this kernel has no Landlock")

def test_expected():
    pytest.xfail("needs the program bwrap")
"""
PACKAGE = """
import pytest

pytest.importorskip("no_such_package")
"""


@pytest.mark.full
def test_what_is_missing_is_a_failure(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "test_package.py").write_text(PACKAGE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *OPTIONS, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LASTWORD_NO_SKIPS": "1"},
        check=False,
    )
    assert "skipped where nothing may be missing: needs the program bwrap" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("1 failed, 1 skipped, 1 xfailed, 1 error in")
