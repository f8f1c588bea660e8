"""Journals: append-only files of JSON lines that survive crashes and have a single writer at a time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NoReturn

from filelock import lock_descriptor

from lastword.errors import SettingError
from lastword.io.files import check_folder, os_error_reason, sync_folder

NEWLINE = b"\n"
MAX_LINE_BYTES = 2**30


class JournalFile:
    """An append-only file of JSON lines, locked while it is written.

    The operating system releases the lock when the writing process ends, however it ends. `kind` names the
    lines in error messages; `remedy` is what the user can do when the file cannot be used at all.
    """

    def __init__(self, path: Path, *, kind: str, remedy: str) -> None:
        self.path, self._kind, self._remedy = path, kind, remedy
        self._file: FileIO | None = None
        check_folder(path.parent)

    @property
    def is_open(self) -> bool:
        """Whether lines can be appended now."""
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
                                f"{self.path} holds something other than {self._kind} (line {number}: "
                                f"{error}); it was left unchanged: move it away, or {self._remedy}"
                            ) from error
                        os.ftruncate(file.fileno(), end)
                    else:
                        if not complete:
                            file.write(NEWLINE)
                    if not complete:
                        break
                    end += len(line)
            sync_folder(self.path.parent)  # the file may be new
        except OSError as error:
            self._fail(error)

    def append(self, lines: bytes) -> None:
        """Write lines and sync them to disk: all of them or, if the disk is full, none."""
        file = self._open_file()
        number = file.fileno()
        try:
            if not os.path.samestat(os.fstat(number), self.path.stat()):
                raise OSError("another file has replaced it")
            end = file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(number)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(number, end)
                raise
        except OSError as error:
            self._fail(error)

    def _open_file(self) -> FileIO:
        if self._file is None:
            raise SettingError(f"{self.path} is not open: use it inside of `with journal.writing():`")
        return self._file

    def _fail(self, error: Exception, remedy: str | None = None) -> NoReturn:
        default = "what was written before is kept: make room and give the same command again"
        raise SettingError(
            f"{self._kind} cannot be written to {self.path} ({os_error_reason(error)}); {remedy or default}"
        ) from error

    def _lock(self, file: FileIO) -> None:
        try:
            locked = lock_descriptor(file.fileno(), blocking=False)
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be locked ({os_error_reason(error)}): see that no other process "
                "writes it",
                stacklevel=4,
            )
            return
        if not locked:
            raise SettingError(
                f"{self.path} is being written by {_lock_holder(file)}; wait for it, end it, or "
                f"{self._remedy}"
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
