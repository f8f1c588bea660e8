"""Journal: records written as they come, one JSON line each, so that a killed run loses nothing."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lastword.errors import SettingError
from lastword.eval.archive import unpack

Record = dict[str, Any]
# What a record answers. Another model, other weights under the same name, another recipe or seed, a task
# whose prompts or scoring changed, or a prompt laid out otherwise is another question: answers are never
# taken from one for the other.
IDENTITY = (
    "kind", "model", "weights", "recipe", "seed", "task", "task_version", "split", "place", "prompt",
    "layout",
)  # fmt: skip
# What every record has, and what every record of an answer has besides: tables need them.
NEEDED = ("model", "recipe", "task", "place")
ANSWERED = ("score", "horizon", "finish", "cost", "probe_cost", "rows", "batch_seconds")


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
        lines = "".join(json.dumps(record) + "\n" for record in records)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.path)) if self.path.exists() else iter(())

    def done(self) -> dict[str, Record]:
        """The records by what they answer: those need not be asked again."""
        return {question_key(record): record for record in self}


def question_key(record: Record) -> str:
    """What a record answers, as text. One written before a field was known answers another question."""
    return json.dumps([record.get(name) for name in IDENTITY])


def read_records(path: Path) -> list[Record]:
    """The records of one file (`.jsonl` or `.jsonl.gz`) or of every such file in a folder.

    Of drift records that answer the same question, the last of a file counts: it has every step.
    """
    if path.is_dir():
        files = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
        return [record for file in files for record in read_records(file)]
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        records = [r for line in text.splitlines() for r in _records(json.loads(line))]
    except (OSError, ValueError) as broken:
        raise SettingError(
            f"{path} cannot be read as records ({broken}); give a file or folder that "
            "`lastword eval --out` wrote"
        ) from broken
    drift = {question_key(r): at for at, r in enumerate(records) if r.get("kind") == "drift"}
    return [
        r
        for at, r in enumerate(records)
        if r.get("kind") != "drift" or drift[question_key(r)] == at
    ]


def _records(line: Any) -> list[Record]:
    """The records of one line: itself, or the many that a line of an archive (archive.py) holds."""
    if not isinstance(line, dict):
        raise ValueError(f"a line is {json.dumps(line)[:40]}, no object")
    archived = all(isinstance(line.get(part), dict) for part in ("shared", "columns"))
    found = list(unpack(line)) if archived else [line]
    for record in found:
        own = ("expected",) if record.get("kind") == "drift" else ANSWERED
        if missing := [name for name in (*NEEDED, *own) if name not in record]:
            raise ValueError(f"a line has no {missing[0]!r}, which every record has")
    return found
