"""Record files: journals that grow line by line, and the reader of journals and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from pydantic_core import from_json

from lastword.evaluate.parquet import FIELDS, FOLDER_SUFFIX, SUFFIX, read_parquet
from lastword.evaluate.records import BaseRecord, Drift, Identity, Record, from_line, identity, to_line
from lastword.io.files import NEWLINE, JournalFile, file_errors, user_path
from lastword.io.schema import read_bytes

LINE_START = b'{"model":"'
MAX_BYTES = 2**30  # of a record file
_FIRST_FIELDS = [field.name for field in fields(BaseRecord)]  # in the order in which a line has them


class Journal:
    """An append-only file of records, written by one process at a time.

    If a run was killed while it wrote a line, the next run removes the torn line. A file that contains
    anything other than records is left unchanged, and SettingError is raised.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path = user_path(path)
        self._file = JournalFile(path, kind="records", remedy="give another folder (--out)")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the journal inside the context and remove a torn line, so that records can be appended."""
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
        return iter(read_records(self.path) if self.path.exists() else ())

    def by_identity(self) -> dict[Identity, Record]:
        """Map each `identity` to its last record."""
        return {identity(record): record for record in self}


def is_torn(line: bytes) -> bool:
    """Return whether this is the beginning of a record's line, but not the whole line."""
    if line[: len(LINE_START)] != LINE_START[: len(line)]:
        return False
    with suppress(ValueError):
        from_json(line)
        return False  # complete JSON
    try:
        names = list(from_json(line, allow_partial="trailing-strings"))
    except ValueError:
        return False
    return names[: len(_FIRST_FIELDS)] == _FIRST_FIELDS[: len(names)] and FIELDS.issuperset(names)


def read_records(path: Path | str) -> list[Record]:
    """Return the records of a journal (`.jsonl`) or a Parquet file, or of all record files below a folder.

    In a folder, only Parquet files whose names end in `.records.parquet` are read, because other tools write
    Parquet files as well. Of drift records with one `identity` in a file, only the last is returned.
    """
    return [record for file in record_files(user_path(path)) for record in _read_file(file)]


def record_files(path: Path) -> list[Path]:
    """Return the record files below a folder, or the given file."""

    def fail(error: OSError) -> NoReturn:
        raise error

    with _read_errors(path):
        if not path.is_dir():
            return [path]
        walk = os.walk(path, onerror=fail)
        suffixes = (".jsonl", FOLDER_SUFFIX)
        return sorted(Path(parent, name) for parent, _, names in walk for name in names if name.endswith(suffixes))


def _read_file(path: Path) -> list[Record]:
    with _read_errors(path):
        content = read_bytes(path, max_bytes=MAX_BYTES)
        records = read_parquet(content) if path.suffix == SUFFIX else _parse_lines(content)
    last = {identity(record): at for at, record in enumerate(records) if isinstance(record, Drift)}
    return [r for at, r in enumerate(records) if not last or last.get(identity(r), at) == at]


def _read_errors(path: Path) -> AbstractContextManager[None]:
    """Return a context manager that raises SettingError if the file or folder cannot be read."""
    return file_errors(f"{path} cannot be read as records", "give a file or folder that `lastword eval --out` wrote")


def _parse_lines(content: bytes) -> list[Record]:
    records, end = [], content[content.rfind(NEWLINE) + 1 :]
    for number, line in enumerate(content.splitlines(), 1):
        try:
            records.append(from_line(line))
        except ValueError as error:
            reason = f"line {number}, {error}"
            if line == end and is_torn(end):
                reason = f"line {number} is incomplete, because the run was killed: give its command again"
            raise ValueError(reason) from error
    return records
