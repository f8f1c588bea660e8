"""Simulation of the bound on overtaking: `python -m benchmarks.serving.order`.

Jobs arrive in a Poisson process at slots whose forward passes take equal time. The order is that of the server's
`Scheduler`. Lengths are pairs of predicted and written lengths of an embedded model. Nothing is timed, so the
results are reproducible.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from benchmarks.passes.replay import kept_pairs
from benchmarks.serving.figures import percentile
from lastword.serve.scheduler import QueuedRequest, Scheduler

OVERTAKING = (0.0, 2.0, 4.0, 8.0, 32.0, 1e6)
PAGE_OVERTAKING = (0.0, 2.0, 8.0, 32.0)  # rows of docs/measured/serving.md
LOADS = (0.9, 1.05)  # relative to the capacity of the slots
WORK = (1, 1, 1, 1, 1, 1, 5, 5, 5, 8)  # relative forward passes of ten requests; `fast` has 1
TOKEN_SECONDS = 0.01


@dataclass(eq=False)
class QueuedJob(QueuedRequest):
    """A job in the queue."""

    job: Job


class Job(NamedTuple):
    """A job: its arrival time, and its true and predicted seconds."""

    at: float
    seconds: float
    predicted: float


def draw_jobs(count: int, slots: int, load: float, seed: int = 0) -> list[Job]:
    """Draw `count` jobs at a rate that uses this share of the slots."""
    draw, pairs = random.Random(seed), kept_pairs().pairs
    drawn = [(draw.choice(pairs), draw.choice(WORK) * TOKEN_SECONDS) for _ in range(count)]
    work = [(min(pair) * slot_seconds, pair[0] * slot_seconds) for pair, slot_seconds in drawn]
    rate, at, jobs = load * slots / fmean(seconds for seconds, _ in work), 0.0, list[Job]()
    for seconds, predicted in work:
        at += draw.expovariate(rate)
        jobs.append(Job(at, seconds, predicted))
    return jobs


def latencies(jobs: Sequence[Job], slots: int, scheduler: Scheduler) -> list[float]:
    """Return the seconds from the arrival of each job to its end, in the order of their starts."""
    ends, waiting, results = list[float](), list[QueuedJob](), list[float]()
    future, now = list(reversed(jobs)), 0.0
    while future or waiting:
        while future and future[-1].at <= now:
            job = future.pop()
            waiting.append(QueuedJob(job.at, job.predicted, 1, job))
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        while len(ends) < slots and (chosen := scheduler.next_request(waiting, 1, batch_is_empty=False)):
            waiting.remove(chosen)
            heapq.heappush(ends, now + chosen.job.seconds)
            results.append(now + chosen.job.seconds - chosen.job.at)
        now = min([job.at for job in future[-1:]] + ends[:1])
    return results


def table(bounds: Sequence[float] = OVERTAKING, count: int = 3000, slots: int = 16) -> str:
    """Return a table of latencies by the bound on overtaking, for loads below and above the capacity."""
    rows = ["| load | bound | mean, s | p50 | p95 | p99 | maximum |", "|---:|---:|" + "---:|" * 5]
    for load in LOADS:
        for bound in bounds:
            seconds = latencies(draw_jobs(count, slots, load), slots, Scheduler(bound))
            cells = [fmean(seconds), *(percentile(seconds, share) for share in (0.5, 0.95, 0.99)), max(seconds)]
            rows.append(f"| {load:.0%} | {bound:g} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
