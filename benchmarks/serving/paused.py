"""Deadlines in the engine, by order of the queue: `python -m benchmarks.serving.paused`.

The model is the toy with a pause in each forward pass, so the seconds of a pass do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from benchmarks.serving.clients import closed_loop, send_to_engine
from benchmarks.serving.figures import DEADLINES, Line, Record, line_of, page_table
from benchmarks.serving.load import ARMS, LoadRequest
from benchmarks.serving.run import WorkMetrics
from lastword.engines.base import environment
from lastword.models.toy import Toy
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.engine import ServerEngine
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings

PAUSE = 0.1  # seconds of a forward pass
TOKENS = (4, 4, 4, 4, 4, 4, 16, 16, 16, 64)  # of ten answers
TIMEOUT = 20.0  # seconds; in order of arrival, the slowest request takes about 15
ORDERS = ("fcfs", "without-deadlines", "predicted")


class PausedToy(Toy):
    """The toy model with answers that do not end by themselves, and slow forward passes."""

    def __init__(self) -> None:
        super().__init__(0.0)

    @override
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        time.sleep(PAUSE)
        return super().__call__(*arguments, **options)


def make_requests(model: Toy, count: int, seed: int = 0) -> list[LoadRequest]:
    """Return requests whose answers have the drawn numbers of tokens."""
    draw, recipe = random.Random(seed), resolve(Recipe(), model, [[0, 1, 2]])
    jobs = [ServerRequest((0, 1, 2), recipe, max_new_tokens=draw.choice(TOKENS), timeout=TIMEOUT) for _ in range(count)]
    return [LoadRequest(number, "toy", "careful", job) for number, job in enumerate(jobs)]


async def measure(name: str, model: Toy, requests: list[LoadRequest], clients: int) -> Line:
    """Measure an order of the queue."""
    metrics = WorkMetrics()
    engine = ServerEngine(model, ServerSettings(), ARMS[name].scheduler, metrics)
    engine.start()
    await engine.submit([requests[0].job]).answers()
    metrics.counts.update(dict.fromkeys(metrics.counts, 0.0))
    start = time.monotonic()
    replies = await closed_loop(partial(send_to_engine, engine), requests, clients)
    seconds = time.monotonic() - start
    await engine.stop()
    return line_of(name, replies, seconds, metrics.counts, (0, 0))


def main() -> None:
    """Measure all orders and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.paused")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--out", type=Path, help="file of the record")
    options = parser.parse_args()
    model = PausedToy()
    requests = make_requests(model, options.requests)
    lines = []
    for name in ORDERS:
        lines.append(asyncio.run(measure(name, model, requests, options.clients)))
        print(lines[-1], flush=True)
    record = Record(
        model=f"toy, {PAUSE} s per forward pass",
        dtype="float32",
        settings={
            "requests": options.requests,
            "clients": options.clients,
            "batch_size": 16,
            "mix": "careful=1",
            "timeout": TIMEOUT,
        },
        notes=["The answers have 4, 16 or 64 tokens."],
        lines=lines,
        **environment(model),
    )
    if options.out is not None:
        options.out.write_text(record.to_json())
    print(page_table(DEADLINES, record))


if __name__ == "__main__":
    main()
