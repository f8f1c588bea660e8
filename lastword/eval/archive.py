"""Records in little room: what a run shares is written once, the rest column by column.

An archive is what a repository keeps of a journal. Texts, and each row's own clock, are left out; a record
read back has everything the tables need.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

Record = dict[str, Any]
LEFT_OUT = ("text", "seconds", "prompt")
DECIMALS = 4


def pack(records: Iterable[Record]) -> bytes:
    """The same records make the same bytes, whatever order they come in."""
    lines = sorted(json.dumps(_group(own)) for own in _runs(records).values())
    return gzip.compress("\n".join(lines).encode(), 9, mtime=0)


def unpack(group: Record) -> Iterator[Record]:
    """The records of one line of an archive."""
    shared, columns = group["shared"], group["columns"]
    paths = [name.split("/") for name in columns]
    for values in zip(*columns.values()):
        record = dict(shared)
        for path, value in zip(paths, values):
            place = record
            for step in path[:-1]:
                place = place.setdefault(step, {})
            place[path[-1]] = value
        yield record


def keep(records: Sequence[Record], path: Path) -> None:
    """Write an archive; `read_records` reads it like a journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(records))


def _runs(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records of one model, recipe, task and surroundings belong together."""
    runs: dict[str, list[Record]] = {}
    apart = ("kind", "model", "weights", "recipe", "seed", "task", "split", "hardware", "versions")
    for record in records:
        runs.setdefault(json.dumps([record.get(name) for name in apart]), []).append(record)
    return runs


def _group(records: list[Record]) -> Record:
    records.sort(key=lambda record: record["place"])
    digest = sha256("".join(record.get("prompt", "") for record in records).encode())
    flat = [dict(_flat({k: v for k, v in r.items() if k not in LEFT_OUT})) for r in records]
    # A record written before a field was known does not have it, and gets it as None.
    names = list(dict.fromkeys(name for record in flat for name in record))
    flat = [{name: record.get(name) for name in names} for record in flat]
    constant = [n for n in names if n != "place" and all(r[n] == flat[0][n] for r in flat)]
    shared: Record = {"prompts": digest.hexdigest()[:16]}
    whole = {name.split("/")[0] for name in names} - {
        name.split("/")[0] for name in names if name not in constant
    }
    shared |= {
        name: records[0].get(name)
        for name in dict.fromkeys(n.split("/")[0] for n in names)
        if name in whole
    }
    columns = {n: [r[n] for r in flat] for n in names if n.split("/")[0] not in whole}
    return {"shared": shared, "columns": columns}


def _flat(record: Record, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and name != "recipe":
            yield from _flat(value, f"{before}{name}/")
        else:
            yield before + name, round(value, DECIMALS) if isinstance(value, float) else value
