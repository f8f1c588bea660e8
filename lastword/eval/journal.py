"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import NoReturn

from pydantic_core import from_json

from lastword.errors import SettingError
from lastword.eval import archive
from lastword.eval.records import (
    Answer,
    Asked,
    Drift,
    Identity,
    Record,
    from_line,
    identity,
    to_line,
)
from lastword.outside.files import check_folder, lock, sync_folder, why
from lastword.outside.schema import read_bytes

NEWLINE = b"\n"
BEGINNING = b'{"model":"'  # of every line
LARGEST = 2**30  # bytes of a journal
_FIRST = [field.name for field in fields(Asked)]  # fields of a line, in this order
_KNOWN = {field.name for kind in (Answer, Drift) for field in fields(kind)}


class Journal:
    """An append-only file of records, written by one process at a time.

    `writing` takes a lock that the kernel drops with its holder, so that two equal commands cannot ask
    everything twice. A last line that was cut in the middle is dropped then, in place; a file that holds
    anything but records is refused and left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_folder(path.parent)
        self._file: FileIO | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the journal, alone: records may be appended while this lasts."""
        try:
            if self.path.exists() and not self.path.is_file():  # to open a pipe may wait for ever
                raise OSError("it is no plain file")
            file = self.path.open("a+b", buffering=0)
        except (OSError, ValueError) as refused:
            self._refuse(refused, "give another folder (--out)")
        with file:
            try:
                self._lock(file)
                self._mend(file)
                sync_folder(self.path.parent)  # it may be new
            except OSError as refused:
                self._refuse(refused)
            self._file = file
            try:
                yield
            finally:
                self._file = None

    def append(self, records: Iterable[Record]) -> None:
        """Write records so that they survive a crash of this process or the machine: all of them or none."""
        if self._file is None:
            with self.writing():
                return self.append(records)
        lines = b"".join(to_line(record) + NEWLINE for record in records)
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

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> dict[Identity, Record]:
        """The records by what they answer: those need not be asked again."""
        return {identity(record): record for record in self}

    def _refuse(self, refused: Exception, remedy: str | None = None) -> NoReturn:
        kept = "what was written before is kept: make room and give the same command again"
        raise SettingError(
            f"records cannot be written to {self.path} ({why(refused)}); {remedy or kept}"
        ) from refused

    def _lock(self, file: FileIO) -> None:
        try:
            free = lock(file.fileno())
        except OSError as unable:
            warnings.warn(
                f"{self.path} cannot be locked ({why(unable)}): see that no other process writes it",
                stacklevel=2,
            )
            return
        if not free:
            raise SettingError(
                f"{self.path} is being written by {_holder(file)}; wait for it, end it, or give another "
                "folder (--out)"
            )

    def _mend(self, file: FileIO) -> None:
        """End the last line, or drop it if it was cut; whatever else is no record stops us here."""
        file.seek(0)
        data = file.read()
        kept = data.rfind(NEWLINE) + 1
        last = data[kept:]
        try:
            _lines(data[:kept])
            if not last:
                return
            if was_cut(last):
                os.ftruncate(file.fileno(), kept)
            else:
                _lines(last, data.count(NEWLINE) + 1)
                file.write(NEWLINE)
        except ValueError as foreign:
            raise SettingError(
                f"{self.path} holds something other than records ({foreign}); it was left as it is: move it "
                "away, or give another folder (--out)"
            ) from foreign


def was_cut(line: bytes) -> bool:
    """Is it the beginning of a line of ours, and not all of it? The first fields come in one order."""
    if line[: len(BEGINNING)] != BEGINNING[: len(line)]:
        return False
    with suppress(ValueError):
        from_json(line)
        return False  # whole, whatever it is
    try:
        begun = from_json(line, allow_partial="trailing-strings")
    except ValueError:
        return False
    return list(begun)[: len(_FIRST)] == _FIRST[: len(begun)] and _KNOWN.issuperset(begun)


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


def read_records(path: Path) -> list[Record]:
    """The records of one file, a journal (`.jsonl`) or an archive (`.arm.xz`), or of all in a folder.

    Of drift records that answer the same question, the last of a file counts: it has every step.
    """
    try:
        if path.is_dir():
            return [record for file in _files_in(path) for record in read_records(file)]
        packed = path.name.endswith(archive.ENDING)
        data = read_bytes(path, most=LARGEST)
        records = archive.unpack(data) if packed else _lines(data)
    except (OSError, ValueError) as broken:
        raise SettingError(
            f"{path} cannot be read as records ({why(broken)}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from broken
    last = {identity(r): at for at, r in enumerate(records) if isinstance(r, Drift)}
    return [r for at, r in enumerate(records) if not last or last.get(identity(r), at) == at]


def _files_in(folder: Path) -> list[Path]:
    """Journals and archives of a folder and those in it. A folder that cannot be listed is an error."""

    def refuse(unlisted: OSError) -> NoReturn:
        raise unlisted

    walked = os.walk(folder, onerror=refuse)
    endings = (".jsonl", archive.ENDING)
    return sorted(
        Path(at, name) for at, _, names in walked for name in names if name.endswith(endings)
    )


def _lines(data: bytes, first: int = 1) -> list[Record]:
    found, end = [], data[data.rfind(NEWLINE) + 1 :]
    for number, line in enumerate(data.splitlines(), first):
        try:
            found.append(from_line(line))
        except ValueError as wrong:
            if line == end and was_cut(end):
                raise ValueError(
                    f"line {number} was cut, as of a run that was killed: give its command again"
                ) from wrong
            raise ValueError(f"line {number}, {wrong}") from wrong
    return found
