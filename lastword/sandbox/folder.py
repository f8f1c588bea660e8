"""The working folder of a program that has no file system of its own: how much is in it, and its end."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lastword.sandbox.inside.nobody import NOBODY

BLOCK = 512  # bytes, in which the kernel counts what a file takes
SMALLEST = 4096  # bytes that an entry takes at least
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def working_folder() -> Iterator[str]:
    """A folder that goes, whatever was put into it; nobody's if root makes it."""
    folder = tempfile.mkdtemp()
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        remove(folder)


def holds_more(folder: str, most: int) -> bool:
    """Whether the files beneath take more bytes; what is nested beyond a path's length does."""
    taken, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    taken += max(found.st_blocks * BLOCK, SMALLEST)
                    if taken > most:
                        return True
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue  # gone since, or made so that nobody can write there either
        except OSError:
            return True
    return False


def remove(folder: str) -> None:
    """Take a folder away with all that is in it; what cannot be removed stays.

    Folders may be nested deeper than Python recurses, than a path is long or than files may be open: one
    folder is open at a time, and the way up is "..", if that is still where we came from.
    """
    with suppress(OSError):
        here = _opened(folder)
        way = [(folder, _identity(here), _emptied(here))]  # from the top, with the folders left in each
        try:
            while True:
                name, _, folders = way[-1]
                if folders:
                    with suppress(OSError):
                        inner = _opened(folders[-1], here)
                        os.close(here)
                        here = inner
                        way.append((folders[-1], _identity(here), _emptied(here)))
                    folders.pop()
                    continue
                way.pop()
                if not way:
                    break
                above = os.open("..", _FOLDER, dir_fd=here)
                os.close(here)
                here = above
                if _identity(here) != way[-1][1]:
                    return
                with suppress(OSError):
                    os.rmdir(name, dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(folder)


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _emptied(where: int) -> list[str]:
    """Remove what is no folder; the names of those that are."""
    folders = []
    for name in os.listdir(where):
        try:
            os.unlink(name, dir_fd=where)
        except OSError:
            folders.append(name)
    return folders


def _opened(name: str, where: int | None = None) -> int:
    """An open folder, no link to one, that its owner may read and write whatever its rights were."""
    try:
        found = os.open(name, _FOLDER, dir_fd=where)
    except PermissionError:
        if sys.platform != "linux":
            raise
        held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=where)
        try:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)
            found = os.open(".", _FOLDER, dir_fd=held)
        finally:
            os.close(held)
    os.fchmod(found, stat.S_IRWXU)
    return found
