"""Simulate how much of their capacity the workers of a pool use: `python -m benchmarks.pool_capacity`.

The real `WorkerPool` distributes prompts to workers whose tasks take simulated seconds, on a simulated clock. Capacity
used is the time that the work takes on workers whose batches are always full, divided by the time until the end.
There are two costs: every forward pass takes the same time (a batch of one costs as much as a full one), or time is
proportional to the tokens computed. Answers take one forward pass per token; actual lengths differ from predicted ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch

import lastword
from lastword.decoding.forward import TokenCost
from lastword.engines.base import GenerationReply, GenerationRequest, ModelInfo
from lastword.engines.pool import WorkerPool, WorkerTask
from lastword.models.toy import Toy
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve

FILE = Path(__file__).parent / "records" / "pool-capacity.json"
WORKERS = (2, 16, 64, 256, 1024)
BATCH_SIZE, SLOTS = 8, 1024
PROMPTS_PER_WORKER = 400
MEAN_LENGTH, SPREAD, ERROR = 200.0, 0.6, 0.35  # of lognormal lengths, and of their predictions
PASS_SECONDS, TOKEN_SECONDS = 0.025, 30e-6

MODEL_INFO = ModelInfo.from_model(Toy())

Cost = Literal["forward passes", "tokens computed"]
COSTS: tuple[Cost, ...] = ("forward passes", "tokens computed")


class SimulatedWorkers:
    """A backend on a simulated clock. A request's seed is the index of its length."""

    def __init__(self, num_workers: int, cost: Cost, num_prompts: int, seed: int = 0) -> None:
        generator = random.Random(seed)
        self.num_workers, self.cost, self.now = num_workers, cost, 0.0
        predicted = [MEAN_LENGTH * generator.lognormvariate(0, SPREAD) for _ in range(num_prompts)]
        self.predicted = [max(1, min(SLOTS, round(length))) for length in predicted]
        self.actual = [max(1, min(SLOTS, round(n * generator.lognormvariate(0, ERROR)))) for n in self.predicted]
        self.prompts = [generator.randint(40, 400) for _ in range(num_prompts)]
        self.full_seconds = 0.0  # of all work in full batches
        self.last_answer = 0.0
        self._events: list[tuple[float, int, Future[Any], Any]] = []
        self._count = 0

    def start(self, worker: int) -> Future[Any]:
        return self._finish_in(0.0, MODEL_INFO)

    def submit(self, worker: int, task: WorkerTask) -> Future[Any]:
        numbers = [request.seed for request in task.requests]
        if task.kind == "plan":
            tokens = sum(self.prompts[number] + SLOTS for number in numbers)
            seconds = PASS_SECONDS if self.cost == "forward passes" else TOKEN_SECONDS * tokens
            self.full_seconds += seconds
            cost = TokenCost(1, 1, 1)
            return self._finish_in(seconds, [(Plan(torch.tensor([self.predicted[n]])), cost) for n in numbers])
        if self.cost == "forward passes":
            rows = [0] * min(task.max_batch_size, len(numbers))  # passes until each row is free
            for number in numbers:
                heapreplace(rows, rows[0] + self.actual[number])
            seconds = PASS_SECONDS * max(rows)
            self.full_seconds += PASS_SECONDS * sum(self.actual[n] for n in numbers) / task.max_batch_size
        else:
            seconds = TOKEN_SECONDS * sum(self.actual[n] * 32 + self.prompts[n] for n in numbers)  # a cached block
            self.full_seconds += seconds
        self.last_answer = max(self.last_answer, self.now + seconds)
        return self._finish_in(seconds, [GenerationReply(n, "", {}) for n in numbers])

    def _finish_in(self, seconds: float, result: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._count += 1
        heappush(self._events, (self.now + seconds, self._count, future, result))
        return future

    def wait(self, futures: Collection[Future[Any]], timeout: float, when: str) -> tuple[set[Future[Any]], None]:
        """Advance the clock to the next event, as `concurrent.futures.wait` would; reading prompts takes no time."""
        if timeout <= 0:
            return set(), None
        self.now, _, future, result = heappop(self._events)
        future.set_result(result)
        return {future}, None

    def kill(self, worker: int) -> None:
        raise RuntimeError("a simulated worker does not hang")

    def is_placed(self, worker: int) -> bool:
        return True

    def requirements(self) -> str:
        return "nothing"

    def close(self) -> None:
        pass


def capacity_used(num_workers: int, cost: Cost, num_prompts: int) -> float:
    """Return the share of the workers' capacity that is used from the start to the last answer."""
    workers = SimulatedWorkers(num_workers, cost, num_prompts)
    recipe = resolve(
        Recipe(length=lastword.Survival(limit=SLOTS)),
        replace(MODEL_INFO, max_seq_len=4 * SLOTS, default_max_new_tokens=SLOTS),
    )

    def requests() -> Iterator[tuple[int, GenerationRequest]]:
        for number in range(num_prompts):
            yield number, GenerationRequest([1] * workers.prompts[number], number)

    with (
        patch("lastword.engines.pool.wait", workers.wait),
        patch("lastword.engines.pool.monotonic", lambda: workers.now),
    ):
        pool = WorkerPool(workers, timeout=1e9, task_timeout=1e9)
        answered = sum(map(len, pool.generate(requests(), recipe, max_batch_size=BATCH_SIZE)))
    if answered != num_prompts:
        raise RuntimeError(f"{answered} of {num_prompts} prompts were answered")
    return workers.full_seconds / (num_workers * workers.last_answer)


def table(record: dict[str, Any]) -> str:
    """Return a Markdown table of a record."""
    rows = [f"| workers | prompts | {' | '.join(COSTS)} |", "|---:|---:|---:|---:|"]
    for line in record["lines"]:
        shares = " | ".join(f"{line[cost]:.1%}" for cost in COSTS)
        rows.append(f"| {line['workers']:,} | {line['prompts']:,} | {shares} |")
    return "\n".join(rows)


def kept() -> str:
    """Return the table of the kept record."""
    return table(json.loads(FILE.read_text("utf-8")))


def main() -> None:
    """Run the simulation, write the record and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[*WORKERS])
    parser.add_argument("--prompts-per-worker", type=int, default=PROMPTS_PER_WORKER)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for workers in options.workers:
        prompts = workers * options.prompts_per_worker
        shares: dict[str, Any] = {cost: round(capacity_used(workers, cost, prompts), 4) for cost in COSTS}
        lines.append({"workers": workers, "prompts": prompts, **shares})
        print(lines[-1], file=sys.stderr, flush=True)
    record = {"batch_size": BATCH_SIZE, "seed": 0, "lines": lines}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
