"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from pydantic_core import from_json

from lastword.errors import SettingError
from lastword.evaluate import parquet
from lastword.evaluate.records import (
    Answer,
    Asked,
    Drift,
    Identity,
    Record,
    from_line,
    identity,
    to_line,
)
from lastword.io.files import NEWLINE, JournalFile, os_error_reason
from lastword.io.schema import read_bytes

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
        self._file = JournalFile(path, kind="records", remedy="give another folder (--out)")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the journal, alone: records may be appended while this lasts."""
        with self._file.writing():
            self._file.recover(from_line, was_cut)
            yield

    def append(self, records: Iterable[Record]) -> None:
        """Write records so that they survive a crash of this process or the machine: all of them or none."""
        if not self._file.is_open:
            with self.writing():
                return self.append(records)
        self._file.append(b"".join(to_line(record) + NEWLINE for record in records))

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> dict[Identity, Record]:
        """The records by what they answer: those need not be asked again."""
        return {identity(record): record for record in self}


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


def read_records(path: Path) -> list[Record]:
    """The records of one file, a journal (`.jsonl`) or a Parquet file, or of all in a folder.

    In a folder, Parquet files count if their names end in `.records.parquet`: other tools write Parquet, too.


    Of drift records that answer the same question, the last of a file counts: it has every step.
    """
    try:
        if path.is_dir():
            return [record for file in _files_in(path) for record in read_records(file)]
        data = read_bytes(path, max_bytes=LARGEST)
        records = parquet.read_parquet(data) if path.suffix == parquet.SUFFIX else _lines(data)
    except (OSError, ValueError) as broken:
        raise SettingError(
            f"{path} cannot be read as records ({os_error_reason(broken)}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from broken
    last = {identity(r): at for at, r in enumerate(records) if isinstance(r, Drift)}
    return [r for at, r in enumerate(records) if not last or last.get(identity(r), at) == at]


def record_files(path: Path) -> list[Path]:
    """Journals and Parquet files of a folder and those in it, or the one file that was given."""
    try:
        return _files_in(path) if path.is_dir() else [path]
    except OSError as unlisted:
        raise SettingError(
            f"{path} cannot be listed ({os_error_reason(unlisted)}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from unlisted


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder. One that cannot be listed is an error."""

    def refuse(unlisted: OSError) -> NoReturn:
        raise unlisted

    walked = os.walk(folder, onerror=refuse)
    endings = (".jsonl", parquet.FOLDER_SUFFIX)
    return sorted(Path(at, name) for at, _, names in walked for name in names if name.endswith(endings))


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
