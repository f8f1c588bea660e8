"""Files we write: whole or not at all, and refused before the work rather than after it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from lastword.errors import SettingError


def user_path(text: str | Path) -> Path:
    """A path as a user wrote it, `~` included."""
    try:
        return Path(text).expanduser()
    except RuntimeError as unknown:
        raise SettingError(
            f"{str(text)!r} names a home folder that is not there ({unknown})"
        ) from unknown


def check_target(path: Path) -> None:
    """Refuse, before any work is done, a file that could not be written after it."""
    try:
        if path.is_dir():
            raise SettingError(f"{path} is a folder; give the name of a file in it")
        if _written_in_place(path):
            return
        os.remove(_beside(path))
    except (OSError, ValueError) as refused:
        raise SettingError(f"{path} cannot be written ({refused}); give another file") from refused


def check_folder(path: Path) -> None:
    """Make a folder for what is to be written, or refuse it before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.remove(_beside(path / "any"))
    except (OSError, ValueError) as refused:
        raise SettingError(
            f"{path} is no folder to write to ({refused}); give another"
        ) from refused


def write(path: Path, data: bytes | str) -> None:
    """Write a file whole: beside it first, safe on the disk, then in its place."""
    content = data.encode() if isinstance(data, str) else data
    beside = None
    try:
        if _written_in_place(path):
            path.write_bytes(content)
            return
        beside = _beside(path)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, os.path.realpath(path))  # a link stays a link
        _sync_folder(path.parent)
    except (OSError, ValueError) as refused:
        if beside is not None:
            with suppress(OSError):
                os.remove(beside)
        raise SettingError(
            f"{path} cannot be written ({refused}); what was there before is as it was"
        ) from refused


def _written_in_place(path: Path) -> bool:
    """Is it a pipe or a device, which a rename would take away?"""
    return path.exists() and not path.is_file()


def _beside(path: Path) -> str:
    """A new empty file in the same folder, with the rights that any new file has."""
    name = f".{path.name[:40]}.{secrets.token_hex(4)}"
    beside = os.path.join(os.path.dirname(os.path.realpath(path)), name)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return beside


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system syncs folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
