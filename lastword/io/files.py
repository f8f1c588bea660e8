"""Files that survive crashes: atomic replacement, and journals to which JSON lines are appended."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NoReturn

from filelock import lock_descriptor

from lastword.errors import SettingError

UNFINISHED = ".unfinished"
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)  # Windows has text files
RENAMES_OPEN_FILES = os.name != "nt"
MAX_PREFIX = 40  # characters of the target's name in the name of an unfinished file
NEWLINE = b"\n"
MAX_LINE_BYTES = 2**30


def user_path(text: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingError(
            f"{str(text)!r} names a home folder that does not exist ({error}); give an absolute path, or one "
            "relative to the current folder"
        ) from error


def os_error_reason(error: Exception) -> str:
    """Return the reason of the operating system without error number and file name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_target(path: Path) -> None:
    """Raise SettingError if a file cannot be written, before there is anything to write."""
    try:
        if path.is_dir():
            raise SettingError(f"{path} is a folder; give the name of a file in it")
        if not _is_written_in_place(path):
            _try_file_beside(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be written ({os_error_reason(error)}); give another file") from error


def check_folder(path: Path) -> None:
    """Create a folder for output files, or raise SettingError if nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_file_beside(path / "any")
    except (OSError, ValueError) as error:
        reason = os_error_reason(error)
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            reason = "a file has its name, or the name of a folder above it"
        raise SettingError(f"{path} is not a folder to write to ({reason}); give another") from error


def write(path: Path, data: bytes | str) -> None:
    """Write a file atomically: a complete new file replaces the old one and keeps its permissions."""
    with _write_errors(path):
        content = data.encode() if isinstance(data, str) else data
        if _is_written_in_place(path):
            path.write_bytes(content)
        else:
            with _replacement(path) as file:
                file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends without an error."""
    with _write_errors(path), _replacement(path) as file:
        yield file


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be written ({os_error_reason(error)}) and is unchanged: free space, or give another file"
        ) from error


def _is_written_in_place(path: Path) -> bool:
    """Return whether this is a pipe or a device; raise if the file must not be replaced."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return True
    if not os.access(path, os.W_OK):  # replacing a file would not check it
        raise PermissionError(errno.EACCES, "the file is read-only")
    for output in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(output)):
                raise ValueError("the output of this command is redirected to it")
    return False


@contextmanager
def _replacement(path: Path) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # replace the target of a link, not the link
    _remove_abandoned(target)
    beside, descriptor = _create_beside(target)
    written = False
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            with suppress(FileNotFoundError):
                _copy_permissions(target, beside)
            os.fsync(descriptor)
            written = True
            if RENAMES_OPEN_FILES:
                _rename(beside, target)  # still locked
        if not RENAMES_OPEN_FILES:
            _rename(beside, target)
    except BaseException:
        if not written:
            with suppress(OSError):
                os.remove(beside)
        raise
    _sync_folder(target.parent)


def _rename(beside: str, target: Path) -> None:
    try:
        os.replace(beside, target)
    except OSError as error:  # a mount point, or another user's file
        raise SettingError(
            f"{target} cannot be replaced ({os_error_reason(error)}) and is unchanged; the new content is in {beside}"
        ) from error


def _create_beside(target: Path) -> tuple[str, int]:
    """Create a locked empty file in the folder of the target; return its path and descriptor."""
    while True:
        beside = target.parent / f"{_prefix(target)}{secrets.token_hex(4)}{UNFINISHED}"
        try:
            descriptor = os.open(beside, NEW_FILE, 0o666)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}") from error
        with suppress(OSError):
            lock_descriptor(descriptor)
        if os.path.exists(beside):
            return str(beside), descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _try_file_beside(path: Path) -> None:
    beside, descriptor = _create_beside(Path(os.path.realpath(path)))
    os.close(descriptor)
    os.remove(beside)


def _prefix(target: Path) -> str:
    return f".{target.name[:MAX_PREFIX]}."


def _remove_abandoned(target: Path) -> None:
    """Remove the unfinished files of processes that were killed; locked files are in use."""
    prefix = _prefix(target)
    length = len(prefix) + 8 + len(UNFINISHED)
    for name in os.listdir(target.parent):
        if name.startswith(prefix) and name.endswith(UNFINISHED) and len(name) == length:
            with suppress(OSError):
                descriptor = os.open(target.parent / name, os.O_RDWR)
                try:
                    if lock_descriptor(descriptor, blocking=False):
                        os.remove(target.parent / name)
                finally:
                    os.close(descriptor)


def _copy_permissions(target: Path, beside: str) -> None:
    status = target.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(beside, status.st_uid, status.st_gid)
    shutil.copymode(target, beside)


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, where the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class JournalFile:
    """An append-only file of JSON lines, locked while it is written.

    The operating system releases the lock when the process ends, even if it is killed. `kind` names the
    lines in error messages; `remedy` is what the user can do when the file cannot be used at all.
    """

    def __init__(self, path: Path, *, kind: str, remedy: str) -> None:
        self.path, self._kind, self._remedy = path, kind, remedy
        self._file: FileIO | None = None
        check_folder(path.parent)

    @property
    def is_open(self) -> bool:
        """True while lines can be appended."""
        return self._file is not None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file and hold its lock. Call `recover` before the first `append`."""
        try:
            if self.path.exists() and not self.path.is_file():  # opening a pipe may block forever
                raise OSError("it is not a regular file")
            file = self.path.open("a+b", buffering=0)
        except (OSError, ValueError) as error:
            self._fail(error, self._remedy)
        with file:
            self._lock(file)
            self._file = file
            try:
                yield
            finally:
                self._file = None

    def is_empty(self) -> bool:
        """Return whether the open file has no content yet."""
        return self._open_file().seek(0, os.SEEK_END) == 0

    def recover(self, read_line: Callable[[bytes], object], is_torn: Callable[[bytes], bool]) -> None:
        """Call `read_line` with every line, and repair the end of a file whose writer was killed.

        A last line without a newline is completed if `read_line` accepts it, and removed if `is_torn`
        recognises it as the beginning of a line. Anything else that `read_line` rejects with a ValueError is
        refused with a SettingError, and the file is left unchanged.
        """
        file = self._open_file()
        end = 0
        try:
            with open(os.dup(file.fileno()), "rb") as reader:
                reader.seek(0)
                for number, line in enumerate(iter(lambda: reader.readline(MAX_LINE_BYTES), b""), 1):
                    complete = line.endswith(NEWLINE)
                    try:
                        read_line(line.removesuffix(NEWLINE))
                    except ValueError as error:
                        if complete or not is_torn(line):
                            raise SettingError(
                                f"{self.path} contains something other than {self._kind} (line {number}: "
                                f"{error}); it was left unchanged: move it away, or {self._remedy}"
                            ) from error
                        os.ftruncate(file.fileno(), end)
                    else:
                        if not complete:
                            file.write(NEWLINE)
                    if not complete:
                        break
                    end += len(line)
            _sync_folder(self.path.parent)  # the file may be new
        except OSError as error:
            self._fail(error)

    def append(self, lines: bytes) -> None:
        """Write lines and sync them to disk: all of them or, if the disk is full, none."""
        file = self._open_file()
        try:
            if not os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                raise OSError("another file has replaced it")
            end = file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise
        except OSError as error:
            self._fail(error)

    def _open_file(self) -> FileIO:
        if self._file is None:
            raise SettingError(f"{self.path} is not open: use it inside of `with journal.writing():`")
        return self._file

    def _fail(self, error: Exception, remedy: str | None = None) -> NoReturn:
        default = "lines that were written before are kept: free space and give the same command again"
        raise SettingError(
            f"{self._kind} cannot be written to {self.path} ({os_error_reason(error)}); {remedy or default}"
        ) from error

    def _lock(self, file: FileIO) -> None:
        try:
            locked = lock_descriptor(file.fileno(), blocking=False)
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({os_error_reason(error)}): check that no other process writes it",
                stacklevel=4,
            )
            return
        if not locked:
            raise SettingError(
                f"{self.path} is being written by {_lock_holder(file)}; wait for it, end it, or {self._remedy}"
            )


def _lock_holder(file: FileIO) -> str:
    """Return the process that holds the lock, where Linux lists it."""
    inode = os.fstat(file.fileno()).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        locks = []
    entries = [line.split() for line in locks if " FLOCK " in line and f":{inode} " in line]
    holders = [entry[4] for entry in entries if "->" not in entry and int(entry[4]) > 0]
    return f"process {holders[0]}" if holders else "another process"
