"""Crash-safe files: atomic replacement, and journals to which JSON lines are appended."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from lastword.errors import LastwordError, SettingError

UNFINISHED = ".unfinished"
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)  # no newline translation on Windows
RENAMES_OPEN_FILES = os.name != "nt"
MAX_PREFIX = 40  # characters of the target's name in the name of an unfinished file
NEWLINE = b"\n"


def user_path(text: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder; raise SettingError if there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingError(
            f"{str(text)!r} names a home folder that does not exist ({error}); give an absolute path, or one "
            "relative to the current folder"
        ) from error


def os_error_reason(error: Exception) -> str:
    """Return the operating system's reason, without error number and file name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


@contextmanager
def file_errors(problem: str, advice: str, kind: type[LastwordError] = SettingError) -> Iterator[None]:
    """Raise `kind` with the problem, the reason and the advice if the block fails because of a file or its content."""
    try:
        yield
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise kind(f"{problem} ({os_error_reason(error)}); {advice}") from error


def check_target(path: Path) -> None:
    """Create the file's folder if necessary; raise SettingError if the file cannot be written.

    Call this before the content is computed.
    """
    with file_errors(f"{path} cannot be written", "give another file"):
        if path.is_dir():
            raise SettingError(f"{path} is a folder; give the name of a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_written_in_place(path):
            _try_file_beside(path)


def check_folder(path: Path) -> None:
    """Create a folder for output files if necessary; raise SettingError if no file can be written in it."""
    with file_errors(f"{path} is not a folder to write to", "give another"):
        path.mkdir(parents=True, exist_ok=True)
        _try_file_beside(path / "any")


def write(path: Path, data: bytes | str) -> None:
    """Write a file atomically: a complete new file replaces the old one and keeps its permissions."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends without an error; a pipe or device is written directly."""
    try:
        with path.open("wb") if _is_written_in_place(path) else _replacement(path) as file:
            yield file
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be written ({os_error_reason(error)}) and is unchanged: free space, or give another file"
        ) from error


def _is_written_in_place(path: Path) -> bool:
    """Return whether this is a pipe or a device; raise OSError or ValueError if it must not be written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return True
    if not os.access(path, os.W_OK):  # os.replace would not check this
        raise PermissionError(errno.EACCES, "the file is read-only")
    for output in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(output)):
                raise ValueError("the output of this command is redirected to it")
    return False


@contextmanager
def _replacement(path: Path) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # replace the target of a link, not the link
    beside, descriptor = _create_beside(target)
    written = False
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            _copy_permissions(target, beside)
            os.fsync(descriptor)
            written = True
            if RENAMES_OPEN_FILES:
                _rename(beside, target)  # while it is still locked
        if not RENAMES_OPEN_FILES:
            _rename(beside, target)
    except BaseException:
        if not written:
            with suppress(OSError):
                beside.unlink()
        raise
    _sync_folder(target.parent)


def _rename(beside: Path, target: Path) -> None:
    # The target may be a mount point, or another user's file.
    with file_errors(f"{target} cannot be replaced and is unchanged", f"the new content is in {beside}"):
        os.replace(beside, target)


def _create_beside(target: Path) -> tuple[Path, int]:
    """Create a locked empty file in the folder of the target; return its path and descriptor."""
    _remove_abandoned(target)
    while True:
        beside = target.parent / f".{target.name[:MAX_PREFIX]}.{os.urandom(4).hex()}{UNFINISHED}"
        try:
            descriptor = os.open(beside, NEW_FILE, 0o666)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}") from error
        with suppress(OSError):
            _lock_file(descriptor)
        if beside.exists():
            return beside, descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _lock_file(descriptor: int, *, blocking: bool = True) -> bool:
    from filelock import lock_descriptor  # a late import, because every command imports this module

    return lock_descriptor(descriptor, blocking=blocking)


def _try_file_beside(path: Path) -> None:
    beside, descriptor = _create_beside(Path(os.path.realpath(path)))
    os.close(descriptor)
    beside.unlink()


def _remove_abandoned(target: Path) -> None:
    """Remove the unfinished files of processes that were killed, but no locked files, which are in use."""
    pattern = f".{glob.escape(target.name[:MAX_PREFIX])}.{'[0-9a-f]' * 8}{UNFINISHED}"
    for path in target.parent.glob(pattern):
        with suppress(OSError), path.open("r+b") as file:
            if _lock_file(file.fileno(), blocking=False):
                path.unlink()


def _copy_permissions(target: Path, beside: Path) -> None:
    with suppress(FileNotFoundError):
        status = target.stat()
        if hasattr(os, "chown"):
            with suppress(PermissionError):
                os.chown(beside, status.st_uid, status.st_gid)
        shutil.copymode(target, beside)


def _sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class JournalFile:
    """An append-only file of JSON lines, locked while it is written.

    The operating system releases the lock when the process ends, even if it is killed. Error messages call
    the lines `kind`, and advise `remedy` if the file cannot be used at all.
    """

    _file: FileIO

    def __init__(self, path: Path, *, kind: str, remedy: str) -> None:
        self.path, self._kind, self._remedy = path, kind, remedy
        self.is_open = False
        check_folder(path.parent)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open and lock the file inside the context. Call `recover` before the first `append`."""
        with self._write_errors(self._remedy):
            if self.path.exists() and not self.path.is_file():  # opening a pipe may block forever
                raise OSError("it is not a regular file")
            file = self.path.open("a+b", buffering=0)
        with file:
            self._lock(file)
            self._file, self.is_open = file, True
            try:
                yield
            finally:
                self.is_open = False

    def recover(self, read_line: Callable[[bytes], object], is_torn: Callable[[bytes], bool]) -> None:
        """Call `read_line` with every line, and repair the end of a file whose writer was killed.

        A last line without a newline is completed if `read_line` accepts it, and removed if `is_torn`
        recognises it as the beginning of a line. If `read_line` rejects any other line with a ValueError,
        SettingError is raised, and the file is left unchanged.
        """
        with self._write_errors(), open(os.dup(self._file.fileno()), "rb") as reader:
            reader.seek(0)
            for number, line in enumerate(reader, 1):
                complete = line.endswith(NEWLINE)
                try:
                    read_line(line.removesuffix(NEWLINE))
                except ValueError as error:
                    if complete or not is_torn(line):
                        raise SettingError(
                            f"{self.path} contains something other than {self._kind} (line {number}: "
                            f"{error}); it was left unchanged: move it away, or {self._remedy}"
                        ) from error
                    os.ftruncate(self._file.fileno(), reader.tell() - len(line))
                else:
                    if not complete:
                        self._file.write(NEWLINE)
                        break
        _sync_folder(self.path.parent)  # the file may be new

    def append(self, lines: bytes) -> None:
        """Write lines and sync them to disk: all of them or, if the disk is full, none."""
        with self._write_errors():
            if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                raise OSError("another file has replaced it")
            end = self._file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[self._file.write(lines) :]
                os.fsync(self._file.fileno())
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), end)
                raise

    def _write_errors(self, advice: str | None = None) -> AbstractContextManager[None]:
        """Return a context manager that raises SettingError if the file cannot be written."""
        default = "lines that were written before are kept: free space and give the same command again"
        return file_errors(f"{self._kind} cannot be written to {self.path}", advice or default)

    def _lock(self, file: FileIO) -> None:
        try:
            if _lock_file(file.fileno(), blocking=False):
                return
        except OSError as error:
            reason = f"({os_error_reason(error)}): check that no other process writes it"
            warnings.warn(f"{self.path} cannot be locked {reason}", stacklevel=4)
            return
        raise SettingError(
            f"{self.path} is being written by {_lock_holder(file)}; wait for it, end it, or {self._remedy}"
        )


def _lock_holder(file: FileIO) -> str:
    """Return a phrase for the process that holds the lock; its number is known on Linux only."""
    with suppress(OSError):
        inode = os.fstat(file.fileno()).st_ino
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            entry = line.split()  # number, type, mode, access, process, device and inode; "->": it waits
            if " FLOCK " in line and f":{inode} " in line and "->" not in entry and int(entry[4]) > 0:
                return f"process {entry[4]}"
    return "another process"
