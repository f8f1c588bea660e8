"""A journal loses nothing of ours, takes nothing of yours, and is written by one process at a time."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from lastword.errors import SettingError
from lastword.evaluate import Journal, read_records
from lastword.evaluate.journal import is_torn
from lastword.evaluate.records import identity, to_line
from tests.evaluate.made import answer

THREE = [answer(index=at) for at in range(3)]

HOLD = """
import sys, time
from pathlib import Path
from lastword.evaluate import Journal
with Journal(Path(sys.argv[1])).writing():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    Journal(tmp_path / "a.jsonl").append(THREE)
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize("theirs", ["my notes\n", "my notes", "{not json}\n", '{"a": 1}\n', "\x00\x01", "\n\n"])
def test_a_file_of_the_users_is_refused_and_left_alone(theirs, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(theirs)
    with pytest.raises(SettingError, match="contains something other than records"):
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
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
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
        with pytest.raises(SettingError, match="lines that were written before are kept"):
            Journal(path).append([answer(index=3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole


def test_another_dtype_is_another_question():
    assert identity(answer(dtype="bfloat16")) != identity(answer())


@pytest.mark.parametrize(
    "theirs",
    [
        '{"a": 1}', '{"a": 1', "{}", '{"my notes', '{"model": "mine", "te', '{"model":"mine","text":"wha',
        '{"model":"mine"}', to_line(answer()).decode()[:-4] + "5.0}",
    ],
)  # fmt: skip
def test_a_last_line_of_the_users_is_refused_and_left_alone(theirs, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(theirs)
    with pytest.raises(SettingError, match="contains something other than records"):
        Journal(path).append(THREE)
    assert path.read_text() == theirs


def test_wherever_a_record_is_cut_it_is_known_for_one():
    line = to_line(answer(text='"\\\N{SNOWMAN}\n', prompt="p", sandbox={"level": "plain"}))
    assert all(is_torn(line[:end]) for end in range(1, len(line)))
    assert not is_torn(line)


def test_a_reader_is_told_that_a_line_was_cut(path):
    path.write_bytes(path.read_bytes() + to_line(answer(index=3))[:99])
    with pytest.raises(SettingError, match="line 4 is incomplete, because the run was killed: give its"):
        read_records(path)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(SettingError, match="it is not a regular file"):
        Journal(tmp_path / "a.jsonl").append(THREE)
    with pytest.raises(SettingError, match="it is not a regular file"):
        read_records(tmp_path)


def test_a_folder_of_its_name_is_refused(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(SettingError, match="records cannot be written to"):
        Journal(tmp_path / "a.jsonl").append(THREE)


def test_a_link_is_followed_and_the_lock_is_the_files(path, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(path)
    with Journal(path).writing(), pytest.raises(SettingError, match="is being written by process"):
        Journal(tmp_path / "link.jsonl").append(THREE)
    Journal(tmp_path / "link.jsonl").append([answer(index=3)])
    assert len(read_records(path)) == 4


def test_a_second_hold_in_one_process_is_refused_and_the_first_goes_on(path):
    journal = Journal(path)
    with journal.writing():
        with pytest.raises(SettingError, match=f"process {os.getpid()}"), journal.writing():
            pass
        journal.append([answer(index=3)])
    assert len(read_records(path)) == 4


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_it_is_said_and_records_are_written(path, monkeypatch, code):
    def none(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(UserWarning, match="cannot be locked.*check that no other process writes it"):
        Journal(path).append([answer(index=3)])
    assert len(read_records(path)) == 4


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: (path.unlink(), path.touch())])
def test_a_journal_that_is_taken_away_stops_the_run(path, change):
    journal = Journal(path)
    with journal.writing():
        change(path)
        with pytest.raises(SettingError, match="records cannot be written to"):
            journal.append([answer(index=3)])


@pytest.mark.parametrize("last", [b"", b'{"model":"m","we'])
def test_a_disk_that_cannot_be_mended_is_no_traceback(path, monkeypatch, last):
    """A full disk takes no newline, and a file that may only be appended to cannot be cut."""
    path.write_bytes(path.read_bytes()[:-1] + (b"\n" + last if last else b""))
    before = path.read_bytes()

    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.ftruncate", refuse)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with pytest.raises(SettingError, match="lines that were written before are kept"):
            Journal(path).append([answer(index=3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_a_folder_is_read_once_each_file_and_none_is_passed_over(path, tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "folder.jsonl" / "b.jsonl").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("mine")
    assert len(read_records(tmp_path)) == 6


def test_a_folder_that_cannot_be_listed_is_an_error(path, tmp_path, monkeypatch):
    """As root all can, so the system's call is made to refuse."""
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(folder):
        if str(folder).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(SettingError, match=r"cannot be read as records .Permission denied"):
        read_records(tmp_path)
