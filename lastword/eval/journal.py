"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lastword.errors import SettingError

Record = dict[str, Any]
Key = tuple[str, str, str, int]


class Journal:
    """An append-only file of records. Opening it drops a last line that was cut in the middle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            whole = path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if len(kept) < len(whole):
                path.write_bytes(kept)

    def append(self, records: Iterable[Record]) -> None:
        """Write records so that they survive a crash of this process or the machine."""
        lines = "".join(json.dumps(record) + "\n" for record in records)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> set[Key]:
        """What need not be asked again."""
        return {key_of(record) for record in self}


def key_of(record: Record) -> Key:
    """What a record answers: model, recipe, task and place."""
    return record["model"], json.dumps(record["recipe"]), record["task"], record["place"]


def read_records(path: Path) -> list[Record]:
    """The records of one file (`.jsonl` or `.jsonl.gz`) or of every such file in a folder."""
    if path.is_dir():
        files = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
        return [record for file in files for record in read_records(file)]
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        return [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as broken:
        raise SettingError(
            f"{path} cannot be read as records ({broken}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from broken
