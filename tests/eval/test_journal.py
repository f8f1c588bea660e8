"""A journal loses nothing of ours, takes nothing of yours, and is written by one process at a time."""

import resource
import subprocess
import sys

import pytest

from lastword.errors import SettingError
from lastword.eval import Journal, read_records
from lastword.eval.records import identity, to_line
from tests.eval.made import answer

THREE = [answer(index=at) for at in range(3)]

HOLD = """
import sys, time
from pathlib import Path
from lastword.eval import Journal
with Journal(Path(sys.argv[1])).writing():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    Journal(tmp_path / "a.jsonl").append(THREE)
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize(
    "theirs", ["my notes\n", "my notes", "{not json}\n", '{"a": 1}\n', "\x00\x01", "\n\n"]
)
def test_a_file_of_the_users_is_refused_and_left_alone(theirs, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(theirs)
    with pytest.raises(SettingError, match="holds something other than records"):
        Journal(path).append(THREE)
    assert path.read_text() == theirs


def test_garbage_among_records_is_named_by_its_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    with pytest.raises(SettingError, match="line 2"):
        Journal(path).append(THREE)
    assert b"garbage" in path.read_bytes()


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_line_that_was_cut_is_dropped_in_place_and_the_others_stay(cut, path):
    whole = path.read_bytes()
    file = path.stat().st_ino
    path.write_bytes(whole + to_line(answer(index=3))[: cut + 1])
    Journal(path).append([answer(index=4)])
    assert [record.index for record in read_records(path)] == [0, 1, 2, 4]
    assert path.stat().st_ino == file


def test_a_last_record_without_its_newline_is_kept(path):
    path.write_bytes(path.read_bytes()[:-1])
    Journal(path).append([answer(index=3)])
    assert [record.index for record in read_records(path)] == [0, 1, 2, 3]


def test_a_second_process_is_told_who_writes_and_the_lock_dies_with_its_holder(path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SettingError, match=f"is being written by process {other.pid}"):
            Journal(path).append([answer(index=3)])
    finally:
        other.kill()
        other.wait()
    Journal(path).append([answer(index=3)])
    assert [record.index for record in read_records(path)] == [0, 1, 2, 3]


def test_a_full_disk_loses_no_record_that_was_written(path):
    """A limit on the size of files stands for it: the kernel refuses in the middle of a line."""
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, before[1]))
    try:
        with pytest.raises(SettingError, match="what was written before is kept"):
            Journal(path).append([answer(index=3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole


def test_another_dtype_is_another_question():
    assert identity(answer(dtype="bfloat16")) != identity(answer())
