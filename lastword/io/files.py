"""Read and write user files safely: atomic writes, checks of paths."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from lastword.errors import SettingError

UNFINISHED = ".unfinished"
NAME_LETTERS = 40  # of the file's own name: a name has 255 bytes at most


def user_path(text: str | Path) -> Path:
    """A path as a user wrote it, `~` included."""
    try:
        return Path(text).expanduser()
    except RuntimeError as unknown:
        raise SettingError(
            f"{str(text)!r} names a home folder that is not there ({unknown}); give a path from / or from "
            "here"
        ) from unknown


def check_target(path: Path) -> None:
    """Refuse, before any work is done, a file that could not be written after it."""
    try:
        if path.is_dir():
            raise SettingError(f"{path} is a folder; give the name of a file in it")
        if not _written_in_place(path):
            _try(path)
    except (OSError, ValueError) as refused:
        raise SettingError(
            f"{path} cannot be written ({os_error_reason(refused)}); give another file"
        ) from refused


def check_folder(path: Path) -> None:
    """Make a folder for what is to be written, or refuse it before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try(path / "any")
    except (FileExistsError, NotADirectoryError) as refused:
        raise SettingError(
            f"{path} is no folder to write to (there is a file of that name, or above it); give another"
        ) from refused
    except (OSError, ValueError) as refused:
        raise SettingError(
            f"{path} is no folder to write to ({os_error_reason(refused)}); give another"
        ) from refused


def write(path: Path, data: bytes | str) -> None:
    """Write a file whole: beside it first, safe on the disk, then in its place, with the rights it had."""
    content = data.encode() if isinstance(data, str) else data
    try:
        if _written_in_place(path):
            path.write_bytes(content)
        else:
            with _replacing(path) as file:
                file.write(content)
    except (OSError, ValueError) as refused:
        raise SettingError(
            f"{path} cannot be written ({os_error_reason(refused)}); what was there before is as it was: "
            "make room, or "
            "give another file"
        ) from refused


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe on the disk, as fsync makes the content of a file."""
    with suppress(OSError):  # not every file system does
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def os_error_reason(refused: Exception) -> str:
    """The system's reason without the number, and without a file name of which the user knows nothing."""
    return (isinstance(refused, OSError) and refused.strerror) or str(refused)


def _written_in_place(path: Path) -> bool:
    """Is it a pipe or a device, which a rename would take away? What must not be replaced is refused."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return True
    if not os.access(path, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, "the file is read-only")
    for output in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(output)):
                raise ValueError("what the command prints goes there already")
    return False


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to be written piece by piece, which takes its place when the block ends without an error."""
    try:
        with _replacing(path) as file:
            yield file
    except (OSError, ValueError) as refused:
        raise SettingError(
            f"{path} cannot be written ({os_error_reason(refused)}); what was there before is as it was: "
            "make room, or "
            "give another file"
        ) from refused


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # a link stays a link
    _remove_abandoned(target)
    beside, number = _beside(target)
    whole = False
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            with suppress(FileNotFoundError):
                _give_rights(target, beside)
            os.fsync(number)
            whole = True
            _rename(beside, target)  # the lock is still held
    except BaseException:
        if not whole:
            with suppress(OSError):
                os.remove(beside)
        raise
    sync_folder(target.parent)


def _rename(beside: str, target: Path) -> None:
    """Put the file in its place; if the system does not let us (a mount, another's file), keep the work."""
    try:
        os.replace(beside, target)
    except OSError as refused:
        raise SettingError(
            f"{target} cannot be replaced ({os_error_reason(refused)}) and is as it was; what was to be "
            "written is in "
            f"{beside}"
        ) from refused


def _beside(path: Path) -> tuple[str, int]:
    """A new empty file in the same folder, locked, with the rights that any new file has."""
    target = Path(os.path.realpath(path))
    while True:
        beside = target.parent / f"{_prefix(target)}{secrets.token_hex(4)}{UNFINISHED}"
        try:
            file = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileNotFoundError as missing:
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}") from missing
        with suppress(OSError):
            lock_descriptor(file)
        if os.path.exists(beside):
            return str(beside), file
        os.close(file)  # taken for abandoned in the moment before the lock


def _try(path: Path) -> None:
    """Raise what writing a file would raise, before there is anything to write."""
    beside, file = _beside(path)
    os.close(file)
    os.remove(beside)


def _prefix(target: Path) -> str:
    return f".{target.name[:NAME_LETTERS]}."


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes left beside a file. What is locked is being written."""
    prefix = _prefix(target)
    length = len(prefix) + 8 + len(UNFINISHED)
    for name in os.listdir(target.parent):
        if name.startswith(prefix) and name.endswith(UNFINISHED) and len(name) == length:
            with suppress(OSError):
                file = os.open(target.parent / name, os.O_RDWR)
                try:
                    if lock_descriptor(file, blocking=False):
                        os.remove(target.parent / name)
                finally:
                    os.close(file)


def _give_rights(target: Path, beside: str) -> None:
    """The rights of the file that is to be replaced and, where we may, its owner."""
    found = target.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(beside, found.st_uid, found.st_gid)
    shutil.copymode(target, beside)
