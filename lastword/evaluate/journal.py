"""Record files: journals that grow line by line, and the reader of journals and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from pydantic_core import from_json

from lastword.errors import SettingError
from lastword.evaluate.parquet import FOLDER_SUFFIX, SUFFIX, read_parquet
from lastword.evaluate.records import Answer, BaseRecord, Drift, Identity, Record, from_line, identity, to_line
from lastword.io.files import NEWLINE, JournalFile, os_error_reason
from lastword.io.schema import read_bytes

LINE_START = b'{"model":"'
MAX_BYTES = 2**30  # of a file
_FIRST_FIELDS = [field.name for field in fields(BaseRecord)]  # the order in a line
_FIELDS = {field.name for kind in (Answer, Drift) for field in fields(kind)}


class Journal:
    """An append-only file of records, written by one process at a time.

    If a run was killed while it wrote a line, the next run removes the torn line. A file that contains
    anything but records is refused and left unchanged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = JournalFile(path, kind="records", remedy="give another folder (--out)")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the journal, so that records can be appended."""
        with self._file.writing():
            self._file.recover(from_line, is_torn)
            yield

    def append(self, records: Iterable[Record]) -> None:
        """Write records and sync them to disk: all of them or none."""
        if not self._file.is_open:
            with self.writing():
                return self.append(records)
        self._file.append(b"".join(to_line(record) + NEWLINE for record in records))

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def by_identity(self) -> dict[Identity, Record]:
        """Return the records by the questions that they answer."""
        return {identity(record): record for record in self}


def is_torn(line: bytes) -> bool:
    """Return whether this is a proper beginning of a record's line."""
    if line[: len(LINE_START)] != LINE_START[: len(line)]:
        return False
    try:
        from_json(line)
        return False  # complete JSON
    except ValueError:
        pass
    try:
        names = list(from_json(line, allow_partial="trailing-strings"))
    except ValueError:
        return False
    return names[: len(_FIRST_FIELDS)] == _FIRST_FIELDS[: len(names)] and _FIELDS.issuperset(names)


def read_records(path: Path) -> list[Record]:
    """Read a journal (`.jsonl`) or a Parquet file, or all record files below a folder.

    In a folder, the names of Parquet files with records end in `.records.parquet`, because other tools
    write Parquet, too. If a file has several drift records of a question, the last one counts.
    """
    try:
        if path.is_dir():
            return [record for file in _files_below(path) for record in read_records(file)]
        content = read_bytes(path, max_bytes=MAX_BYTES)
        records = read_parquet(content) if path.suffix == SUFFIX else _parse_lines(content)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be read as records ({os_error_reason(error)}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from error
    last = {identity(record): at for at, record in enumerate(records) if isinstance(record, Drift)}
    return [r for at, r in enumerate(records) if not last or last.get(identity(r), at) == at]


def record_files(path: Path) -> list[Path]:
    """Return the record files below a folder, or the given file."""
    try:
        return _files_below(path) if path.is_dir() else [path]
    except OSError as error:
        raise SettingError(
            f"{path} cannot be listed ({os_error_reason(error)}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from error


def _files_below(folder: Path) -> list[Path]:
    def fail(error: OSError) -> NoReturn:
        raise error

    walk = os.walk(folder, onerror=fail)
    suffixes = (".jsonl", FOLDER_SUFFIX)
    return sorted(Path(parent, name) for parent, _, names in walk for name in names if name.endswith(suffixes))


def _parse_lines(content: bytes) -> list[Record]:
    records, end = [], content[content.rfind(NEWLINE) + 1 :]
    for number, line in enumerate(content.splitlines(), 1):
        try:
            records.append(from_line(line))
        except ValueError as error:
            if line == end and is_torn(end):
                raise ValueError(
                    f"line {number} is incomplete, because the run was killed: give its command again"
                ) from error
            raise ValueError(f"line {number}, {error}") from error
    return records
