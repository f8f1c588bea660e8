"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lastword.errors import SettingError
from lastword.eval import archive
from lastword.eval.records import Drift, Identity, Record, from_line, identity, to_line


class Journal:
    """An append-only file of records. Opening it drops a last line that was cut in the middle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            raise SettingError(
                f"records cannot be written to {path.parent} ({refused}); give a folder"
            ) from refused
        if path.exists():
            whole = path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if len(kept) < len(whole):
                path.write_bytes(kept)

    def append(self, records: Iterable[Record]) -> None:
        """Write records so that they survive a crash of this process or the machine."""
        lines = b"".join(to_line(record) + b"\n" for record in records)
        with self.path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> dict[Identity, Record]:
        """The records by what they answer: those need not be asked again."""
        return {identity(record): record for record in self}


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
