"""Evaluations by several processes that are killed, or run on a disk that is full."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.engines.interrupted import JOURNAL, check_resumed, evaluate_into, processes, records, run, run_and_kill

pytestmark = [pytest.mark.full, pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")]
PROCESSES = ["--engine", "processes", "--workers", "2"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return evaluate_into(tmp_path_factory.mktemp("local") / JOURNAL)


def spawned_here():
    return {
        pid for pid, (_, command, folder) in processes().items() if "spawn_main" in command and folder == os.getcwd()
    }


def test_a_killed_driver_leaves_no_worker_and_loses_nothing(expected, tmp_path):
    before = spawned_here()
    run_and_kill(PROCESSES, tmp_path)
    deadline = time.monotonic() + 60
    while spawned_here() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert spawned_here() <= before
    check_resumed(PROCESSES, tmp_path, expected)


@pytest.mark.skipif(not shutil.which("prlimit"), reason="needs prlimit")
def test_a_full_disk_loses_nothing(expected, tmp_path):
    done = run(PROCESSES, tmp_path, max_file_bytes=8000)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "records cannot be written" in done.stderr
    kept = records(tmp_path / JOURNAL)
    assert 0 < len(kept) < len(expected)
    assert set(kept) <= set(expected)
    check_resumed(PROCESSES, tmp_path, expected)
