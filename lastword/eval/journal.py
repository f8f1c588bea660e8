"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from lastword.errors import SettingError
from lastword.eval import archive
from lastword.eval.records import Drift, Identity, Record, from_line, identity, to_line

NEWLINE = b"\n"
BEGINNING = b'{"'  # of every line


class Journal:
    """An append-only file of records, written by one process at a time.

    `writing` takes a lock that the kernel drops with its holder, so that two equal commands cannot ask
    everything twice. A last line that was cut in the middle is dropped then, in place; a file that holds
    anything but records is refused and left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            raise SettingError(
                f"records cannot be written to {path.parent} ({refused}); give a folder"
            ) from refused
        self._file: FileIO | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the journal, alone: records may be appended while this lasts."""
        try:
            self._file = self.path.open("a+b", buffering=0)
        except OSError as refused:
            raise SettingError(f"records cannot be written to {self.path} ({refused})") from refused
        try:
            with self._file:
                self._lock(self._file)
                self._mend(self._file)
                yield
        finally:
            self._file = None

    def append(self, records: Iterable[Record]) -> None:
        """Write records so that they survive a crash of this process or the machine: all of them or none."""
        if self._file is None:
            with self.writing():
                return self.append(records)
        lines = b"".join(to_line(record) + b"\n" for record in records)
        end = self._file.seek(0, os.SEEK_END)
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError as refused:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise SettingError(
                f"records cannot be written to {self.path} ({refused}); what was written before is kept: "
                "make room and give the same command again"
            ) from refused

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> dict[Identity, Record]:
        """The records by what they answer: those need not be asked again."""
        return {identity(record): record for record in self}

    def _lock(self, file: FileIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise SettingError(
                f"{self.path} is being written by {_holder(file)}; wait for it, end it, or give another "
                "folder (--out)"
            ) from held

    def _mend(self, file: FileIO) -> None:
        """End the last line, or drop it if it was cut; whatever else is no record stops us here."""
        file.seek(0)
        data = file.read()
        kept = data.rfind(b"\n") + 1
        last = data[kept:]
        try:
            _lines(data[:kept])
            if not last:
                return
            if not last.startswith(BEGINNING):
                raise ValueError(f"line {data.count(NEWLINE) + 1} is no record")
        except ValueError as foreign:
            raise SettingError(
                f"{self.path} holds something other than records ({foreign}); it was left as it is: move it "
                "away, or give another folder (--out)"
            ) from foreign
        try:
            from_line(last)
        except ValueError:
            os.ftruncate(file.fileno(), kept)
        else:
            file.write(NEWLINE)


def _holder(file: FileIO) -> str:
    """Who holds the lock, where the kernel tells."""
    number = os.fstat(file.fileno()).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        locks = []
    holders = [line.split()[4] for line in locks if line.split()[5].endswith(f":{number}")]
    return f"process {holders[0]}" if holders else "another process"


def read_records(path: Path) -> list[Record]:
    """The records of one file, a journal (`.jsonl`) or an archive (`.arm.xz`), or of all in a folder.

    Of drift records that answer the same question, the last of a file counts: it has every step.
    """
    if path.is_dir():
        files = sorted([*path.rglob("*.jsonl"), *path.rglob(f"*{archive.ENDING}")])
        return [record for file in files for record in read_records(file)]
    try:
        data = path.read_bytes()
        records = archive.unpack(data) if path.name.endswith(archive.ENDING) else _lines(data)
    except (OSError, ValueError) as broken:
        raise SettingError(
            f"{path} cannot be read as records ({broken}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from broken
    last = {identity(r): at for at, r in enumerate(records) if isinstance(r, Drift)}
    return [r for at, r in enumerate(records) if not last or last.get(identity(r), at) == at]


def _lines(data: bytes) -> list[Record]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            found.append(from_line(line))
        except ValueError as wrong:
            raise ValueError(f"line {number}, {wrong}") from wrong
    return found
