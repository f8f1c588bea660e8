"""Simulate a thousand replicas: `python -m benchmarks.scale --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.scale.record import FILE, Record
from benchmarks.scale.study import Size, study
from benchmarks.scale.table import table


def main(arguments: list[str]) -> Record:
    """Run the simulation, write the record and print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description="Simulate many replicas from kept records. Takes minutes; then run `python -m benchmarks.pages` "
        "and `python -m benchmarks.figures`.",
    )
    add = parser.add_argument
    add("--requests", type=int, default=Size.requests)
    add("--replicas", type=int, default=Size.replicas)
    add("--seed", type=int, default=Size.seed)
    add("--out", type=Path, default=None, help=f"default: the kept {FILE.name}, for a run of full size only")
    options = parser.parse_args(arguments)
    if options.replicas < 2 or options.requests < 10 * options.replicas or options.seed < 0:
        parser.error("give at least 2 replicas, at least 10 requests per replica, and a seed of at least 0")
    size = Size(options.requests, options.replicas, options.seed)
    record = study(size, lambda line: print(line, file=sys.stderr, flush=True))
    out = options.out or (FILE if size == Size() else None)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(record.to_json())
    print(table(record))
    return record


if __name__ == "__main__":
    main(sys.argv[1:])
