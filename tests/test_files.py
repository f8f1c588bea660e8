"""Files are written completely or not at all, keep their permissions, and leave nothing behind."""

import errno
import os
import stat
import subprocess
import sys
import threading

import pytest

from lastword.errors import SettingError
from lastword.io import files
from lastword.io.files import check_folder, check_target, write

KILLED = """
import os, signal, sys
from pathlib import Path
from lastword.io import files
os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
files.write(Path(sys.argv[1]), "new")
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    return tmp_path / "a.txt"


def beside(path):
    return sorted(one.name for one in path.parent.iterdir() if one != path)


def fails(code):
    def raising(*_, **__):
        raise OSError(code, os.strerror(code))

    return raising


def test_a_file_is_written_without_leftovers(path):
    write(path, "né")
    assert path.read_bytes() == "né".encode()
    write(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert beside(path) == []


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_permissions(path, mode):
    path.chmod(mode)
    write(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_target_of_a_link_is_written(path, tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(path)
    write(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_a_link_without_target_creates_it(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "later")
    write(tmp_path / "link", "new")
    assert (tmp_path / "later").read_text() == "new"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_write_leaves_the_file_unchanged(path, monkeypatch, code):
    monkeypatch.setattr(files.os, "fsync", fails(code))
    with pytest.raises(SettingError, match=f"{os.strerror(code)}.*and is unchanged"):
        write(path, "new")
    assert path.read_text() == "old"
    assert beside(path) == []


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EXDEV, errno.EPERM])
def test_content_is_kept_if_the_file_cannot_be_replaced(path, monkeypatch, code):
    monkeypatch.setattr(files.os, "replace", fails(code))
    with pytest.raises(SettingError, match=r"cannot be replaced.*the new content is in") as e:
        write(path, "new")
    assert path.read_text() == "old"
    (name,) = beside(path)
    assert name in str(e.value)
    assert (path.parent / name).read_text() == "new"


def test_an_interrupt_leaves_no_unfinished_file(path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, "new")
    assert path.read_text() == "old"
    assert beside(path) == []


def test_the_next_write_removes_the_unfinished_file_of_a_killed_process(path):
    (path.parent / ".a.txt.mine").write_text("yours")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -9
    assert path.read_text() == "old"
    left = [name for name in beside(path) if name.endswith(files.UNFINISHED)]
    assert [name[:7] for name in left] == [".a.txt."]
    write(path, "newer")
    assert beside(path) == [".a.txt.mine"]


def test_a_check_removes_the_unfinished_file_of_a_killed_check(tmp_path):
    killed = "import os, sys; from lastword.io import files; os.close = lambda number: os._exit(1); "
    killed += "files.check_folder(files.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_being_written_is_not_removed(path):
    name, number = files._create_beside(path)
    write(path, "new")
    assert os.path.exists(name)
    os.close(number)
    write(path, "newer")
    assert beside(path) == []


def test_concurrent_writers_leave_one_complete_file(path):
    contents = [letter * 200_000 for letter in "abcd"]
    writers = [
        threading.Thread(target=lambda content=content: [write(path, content) for _ in range(20)])
        for content in contents
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in contents
    assert beside(path) == []


def test_files_are_written_without_support_for_locks(path, monkeypatch):
    def unsupported(*given, **options):
        raise OSError(errno.ENOLCK, "no locks on this disk")

    monkeypatch.setattr("filelock.lock_descriptor", unsupported)
    write(path, "new")
    assert path.read_text() == "new"
    assert beside(path) == []


def test_a_pipe_is_written_in_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_target(tmp_path / "pipe")
    write(tmp_path / "pipe", "new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_device_is_a_setting_error():
    with pytest.raises(SettingError, match="No space left"):
        write(files.Path("/dev/full"), "new")


def test_the_file_of_a_redirected_output_is_rejected(path):
    code = "import sys, pathlib; from lastword.io import files; files.write(pathlib.Path(sys.argv[1]), 'new')"
    with path.open("a") as output:
        done = subprocess.run([sys.executable, "-c", code, "/dev/stdout"], stdout=output, stderr=subprocess.PIPE)
    assert b"the output of this command is redirected to it" in done.stderr
    assert path.read_text() == "old"


def test_the_folder_of_a_file_is_created(tmp_path):
    check_target(tmp_path / "new" / "folder" / "a.txt")
    assert [*(tmp_path / "new" / "folder").iterdir()] == []


def test_the_error_names_a_missing_folder_only(tmp_path):
    with pytest.raises(SettingError, match="there is no folder") as refused:
        files.write(tmp_path / "none" / "a.txt", "")
    assert files.UNFINISHED not in str(refused.value)


def test_a_system_that_renames_closed_files_only(path, monkeypatch):
    monkeypatch.setattr(files, "RENAMES_OPEN_FILES", False)
    for content in (b"one\n", b"two\n"):
        files.write(path, content)
        assert path.read_bytes() == content
    assert [*path.parent.iterdir()] == [path]


def test_a_read_only_file_is_not_replaced(path, monkeypatch):
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write anything
    for refuse in (check_target, lambda path: write(path, "new")):
        with pytest.raises(SettingError, match="the file is read-only"):
            refuse(path)
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a.txt/b"])
def test_an_invalid_name_is_rejected(path, name):
    for check in (check_target, check_folder):
        with pytest.raises(SettingError, match=r"write|written"):
            check(path.parent / name)
