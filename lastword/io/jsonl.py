"""Append JSON lines to a locked file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NoReturn

from lastword.errors import SettingError
from lastword.io.files import lock, os_error_reason, sync_folder

NEWLINE = b"\n"


class JsonLines:
    """A file of lines, held under a lock that the kernel drops with its holder.

    Two equal commands cannot both write it. What is appended is there as a whole, or not at all: what a
    full disk took half of is taken back. `kind` is what the lines are, in messages, and `remedy` what to do
    where there is no writing at all.
    """

    def __init__(self, path: Path, *, kind: str, remedy: str) -> None:
        self.path, self._kind, self._remedy = path, kind, remedy
        self._file: FileIO | None = None

    @property
    def held(self) -> bool:
        """May lines be appended now?"""
        return self._file is not None

    @contextmanager
    def writing(self, mend: Callable[[FileIO], None]) -> Iterator[None]:
        """Hold the file, alone. `mend` is given it first, to end or drop a last line that was cut."""
        try:
            if self.path.exists() and not self.path.is_file():  # to open a pipe may wait for ever
                raise OSError("it is no plain file")
            file = self.path.open("a+b", buffering=0)
        except (OSError, ValueError) as refused:
            self._refuse(refused, self._remedy)
        with file:
            try:
                self._lock(file)
                mend(file)
                sync_folder(self.path.parent)  # it may be new
            except OSError as refused:
                self._refuse(refused)
            self._file = file
            try:
                yield
            finally:
                self._file = None

    def append(self, lines: bytes) -> None:
        """Write lines so that they survive a crash of this process or the machine: all of them or none."""
        if self._file is None:
            raise SettingError(f"{self.path} is not held: append to it inside of `writing`")
        number = self._file.fileno()
        try:
            if not os.path.samestat(os.fstat(number), self.path.stat()):
                raise OSError("another file has taken its name")
            end = self._file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[self._file.write(lines) :]
                os.fsync(number)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(number, end)
                raise
        except OSError as refused:
            self._refuse(refused)

    def _refuse(self, refused: Exception, remedy: str | None = None) -> NoReturn:
        kept = "what was written before is kept: make room and give the same command again"
        raise SettingError(
            f"{self._kind} cannot be written to {self.path} ({os_error_reason(refused)}); {remedy or kept}"
        ) from refused

    def _lock(self, file: FileIO) -> None:
        try:
            free = lock(file.fileno())
        except OSError as unable:
            warnings.warn(
                f"{self.path} cannot be locked ({os_error_reason(unable)}): see that no other process "
                "writes it",
                stacklevel=2,
            )
            return
        if not free:
            raise SettingError(
                f"{self.path} is being written by {_holder(file)}; wait for it, end it, or {self._remedy}"
            )


def _holder(file: FileIO) -> str:
    """Who holds the lock, where the kernel tells."""
    number = os.fstat(file.fileno()).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        locks = []
    found = [line.split() for line in locks if " FLOCK " in line and f":{number} " in line]
    holders = [words[4] for words in found if "->" not in words and int(words[4]) > 0]
    return f"process {holders[0]}" if holders else "another process"
