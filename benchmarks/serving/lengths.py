"""Answers while clients repeat length probes: `python -m benchmarks.serving.lengths`."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import lastword
from benchmarks.serving.clients import closed_loop, send_to_engine, warm_up_jobs
from benchmarks.serving.figures import LENGTH_CLIENTS, Line, Record, line_of, page_table
from benchmarks.serving.load import LoadRequest, make_requests
from benchmarks.serving.run import WorkMetrics
from lastword.engines.base import environment
from lastword.models.base import MaskPredictor
from lastword.serve.engine import ServerEngine
from lastword.serve.settings import ServerSettings
from lastword.survival.interpretation import Auto

CLIENTS = (0, 12)
FAMILY = "complete_function"
LIMIT = 256  # slots of a probe


async def measure(model: MaskPredictor, requests: Sequence[LoadRequest], clients: int, length_clients: int) -> Line:
    """Measure answers in a closed loop while other clients repeat length probes."""
    metrics = WorkMetrics()
    engine = ServerEngine(model, ServerSettings(), metrics=metrics)
    engine.start()
    await engine.submit(warm_up_jobs(model.default_max_new_tokens, requests)).answers()
    probes, is_finished = 0, asyncio.Event()

    async def repeat(number: int) -> None:
        nonlocal probes
        while not is_finished.is_set():
            prompt = requests[(number + probes) % len(requests)].job.prompt_ids
            await engine.lengths(prompt, LIMIT, "document", Auto())
            probes += 1

    loops = [asyncio.ensure_future(repeat(number)) for number in range(length_clients)]
    metrics.counts.update(dict.fromkeys(metrics.counts, 0.0))
    start = time.monotonic()
    replies = await closed_loop(partial(send_to_engine, engine), requests, clients)
    seconds, counted = time.monotonic() - start, probes
    is_finished.set()
    await asyncio.gather(*loops)
    await engine.stop()
    line = line_of(f"{length_clients} length clients", replies, seconds, metrics.counts, (0, 0))
    return line.model_copy(update={"probes_per_second": counted / seconds})


def main() -> None:
    """Measure both numbers of length clients and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.lengths", description=__doc__)
    parser.add_argument("--model", default="tiny-llada-base")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the record")
    parser.add_argument("--out", type=Path, help="file of the record")
    options = parser.parse_args()
    model = lastword.load(options.model, device="cpu")
    requests = make_requests(model, options.requests, mix={options.recipe: 1}, families=[FAMILY])
    lines = [asyncio.run(measure(model, requests, options.clients, count)) for count in CLIENTS]
    record = Record(
        model=options.model,
        dtype="float32",
        settings={
            "requests": options.requests,
            "clients": options.clients,
            "batch_size": 16,
            "mix": f"{options.recipe}=1",
        },
        notes=options.note,
        lines=lines,
        **environment(model),
    )
    if options.out is not None:
        options.out.write_text(record.to_json())
    print(page_table(LENGTH_CLIENTS, record))


if __name__ == "__main__":
    main()
