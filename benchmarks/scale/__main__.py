"""Simulate a thousand replicas: `python -m benchmarks.scale --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.scale.record import FILE, Record
from benchmarks.scale.study import Size, study
from benchmarks.scale.table import table


def main(given: list[str]) -> Record:
    """Make the record, print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description="Many replicas, by simulation from our own records: what prediction buys. Takes minutes; "
        "then run `python -m benchmarks.pages` and `python -m benchmarks.figures`.",
    )
    add = parser.add_argument
    add("--requests", type=int, default=Size.requests)
    add("--replicas", type=int, default=Size.replicas)
    add("--seed", type=int, default=Size.seed)
    add("--out", type=Path, default=None, help=f"default: {FILE.name} of the records, at full size")
    wanted = parser.parse_args(given)
    if wanted.replicas < 2 or wanted.requests < 10 * wanted.replicas or wanted.seed < 0:
        parser.error("give at least 2 replicas, 10 requests for each, and a seed from 0 on")
    size = Size(wanted.requests, wanted.replicas, wanted.seed)
    record = study(size, lambda line: print(line, file=sys.stderr, flush=True))
    out = wanted.out or (FILE if size == Size() else None)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(record.to_json())
    print(table(record))
    return record


if __name__ == "__main__":
    main(sys.argv[1:])
