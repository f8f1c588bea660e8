"""Evaluations by several processes that are broken: killed, or on a disk that is full."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.engines.commands import JOURNAL, evaluated, given, killed_half_way, records

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]
PROCESSES = ["--engine", "processes", "--workers", "2"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return evaluated(tmp_path_factory.mktemp("local") / JOURNAL)


def workers():
    """Of whoever: spawned by multiprocessing in this tree."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                named = (entry / "cmdline").read_text()
                here = os.readlink(entry / "cwd") == os.getcwd()
            except OSError:
                continue
            if "spawn_main" in named and here:
                found.add(entry.name)
    return found


def test_a_driver_that_is_killed_leaves_no_worker_and_loses_nothing(unbroken, tmp_path):
    before = workers()
    killed_half_way(PROCESSES, tmp_path)
    deadline = time.monotonic() + 60
    while workers() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers() <= before
    done = given(PROCESSES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / JOURNAL) == unbroken
    assert "tiny" in done.stdout


@pytest.mark.skipif(not shutil.which("prlimit"), reason="needs prlimit")
def test_a_full_disk_loses_nothing(unbroken, tmp_path):
    done = given(PROCESSES, tmp_path, limit=8000)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "records cannot be written" in done.stderr
    kept = records(tmp_path / JOURNAL)
    assert 0 < len(kept) < len(unbroken)
    assert set(kept) <= set(unbroken)
    assert given(PROCESSES, tmp_path).returncode == 0
    assert records(tmp_path / JOURNAL) == unbroken
