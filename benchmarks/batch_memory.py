"""Measure the memory and the disk space of a batch of many lines: `python -m benchmarks.batch_memory`.

    python -m benchmarks.batch_memory --lines 1000000 10000000
    python -m benchmarks.batch_memory --lines 2000 --out FILE      to test the script

Each size runs in a process of its own, with an engine that answers without a model, so that only reading, tokenizing,
writing and sorting lines is measured. Memory is the peak of the process; disk space is that of the folder of the
answers, at its peak, without the prompts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import lastword
from lastword.batch import Batch
from lastword.engines.base import (
    GenerationReply,
    Lengths,
    ModelInfo,
    Replies,
    Requests,
    empty_details,
    environment,
    portions,
)
from lastword.io.files import write
from lastword.recipe.recipe import Recipe

RECORD = Path(__file__).parent / "records" / "batch-memory.json"
MODEL = "tiny-llada-base"
TEXT = "A number is even if two divides it. " * 4


class InstantEngine:
    """An engine that answers every prompt with the same text."""

    def __init__(self, model_info: ModelInfo) -> None:
        self.model_info = model_info

    def generate(self, requests: Requests[Any], recipe: Recipe, *, max_batch_size: int) -> Replies[Any]:
        """Yield a reply for each request; the order of a portion is reversed, so that the answers must be sorted."""
        for portion in portions(requests):
            details = empty_details(8, "ended") | {"rows": max_batch_size, "hardware": "none", "versions": {}}
            yield [GenerationReply(key, TEXT, details) for key in reversed(portion)]

    def predict_lengths(self, requests: Requests[Any], recipe: Recipe, *, max_batch_size: int) -> Lengths[Any]:
        """Yield a length for each request."""
        for portion in portions(requests):
            yield dict.fromkeys(portion, 32)

    def close(self) -> None:
        """Release nothing."""


def watch_disk(folder: Path, before: int, peak: list[int], stop: Event) -> None:
    """Keep the largest size of the files of a folder, less `before` bytes, until `stop` is set."""
    while not stop.wait(0.1):
        sizes = []
        for path in folder.iterdir():
            try:
                sizes.append(path.stat().st_size)
            except OSError:  # the file has just been renamed
                continue
        peak[0] = max(peak[0], sum(sizes) - before)


def measure(lines: int, in_order: bool) -> Mapping[str, Any]:
    """Answer a file of `lines` prompts; return seconds, peak memory, and the sizes of the files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "prompts.jsonl").open("w") as file:
            file.writelines(f'{{"prompt": "Is {number} even?"}}\n' for number in range(lines))
        before = (folder / "prompts.jsonl").stat().st_size
        engine = InstantEngine(ModelInfo.from_model(lastword.load(MODEL, device="cpu")))
        base, peak, stop = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [0], Event()
        watcher = Thread(target=watch_disk, args=(folder, before, peak, stop))
        watcher.start()
        start = time.monotonic()
        try:
            job = Batch(folder / "prompts.jsonl", folder / "answers.jsonl", name=MODEL, in_order=in_order)
            summary = job.run(engine)
        finally:
            stop.set()
            watcher.join()
        seconds, size = time.monotonic() - start, (folder / "answers.jsonl").stat().st_size
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "lines": lines, "in_order": in_order, "answered": summary.answered, "seconds": round(seconds, 1),
        "memory_mib": round(memory / 1024), "base_mib": round(base / 1024),
        "answers_mb": round(size / 1e6, 1), "disk_mb": round(peak[0] / 1e6, 1),
    }  # fmt: skip


def table(path: Path = RECORD) -> str:
    """Return a Markdown table of the record."""
    rows = [
        "| lines | sorted at the end | memory, MiB | disk space relative to the answers | lines per second |",
        "|---:|---|---:|---:|---:|",
    ]
    for line in json.loads(path.read_text())["lines"]:
        cells = [f"{line['lines']:,}", "yes" if line["in_order"] else "no", f"{line['memory_mib']:,}"]
        cells += [f"{line['disk_mb'] / line['answers_mb']:.1f}x", f"{line['lines'] / line['seconds']:,.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure each size in its own process, the smallest also unsorted; write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_memory")
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--run", nargs=2, metavar=("LINES", "ORDER"), help="one run, which prints JSON")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    if options.run:
        lines, order = options.run
        print(json.dumps(measure(int(lines), order == "sorted")))
        return
    runs = []
    for lines in options.lines:
        for order in ("sorted", "as they come") if lines == min(options.lines) else ("sorted",):
            command = [sys.executable, "-m", "benchmarks.batch_memory", "--run", str(lines), order]
            runs.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
            print(runs[-1], flush=True)
    record = {"model": MODEL, **environment(lastword.load(MODEL, device="cpu")), "lines": runs}
    write(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
