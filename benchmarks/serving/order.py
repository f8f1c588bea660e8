"""Order: what a bound on overtaking costs and brings, by simulation: `python -m benchmarks.serving.order`.

Jobs come at random (Poisson) to slots that all take as long a pass; who goes next is the server's own
`Schedule`. Lengths are pairs, predicted and written, that were measured with an embedded model. Nothing is
timed, so the figures are the same every time.
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
SHARES = (0.9, 1.05)  # of what the slots can do
WORK = (1, 1, 1, 1, 1, 1, 5, 5, 5, 8)  # of ten requests: passes by recipe, in those of `fast`
A_TOKEN = 0.01  # seconds


@dataclass(eq=False)
class QueuedJob(QueuedRequest):
    """A job in the queue."""

    job: Coming


class Coming(NamedTuple):
    """A job: when it comes, how long it takes, and how long it is predicted to."""

    at: float
    seconds: float
    predicted: float


def coming(count: int, slots: int, share: float, seed: int = 0) -> list[Coming]:
    """Draw `count` jobs, at a rate that takes this share of the slots."""
    draw, pairs = random.Random(seed), kept_pairs().pairs
    drawn = [(draw.choice(pairs), draw.choice(WORK) * A_TOKEN) for _ in range(count)]
    work = [(min(pair) * each, pair[0] * each) for pair, each in drawn]
    rate, at, jobs = share * slots / fmean(seconds for seconds, _ in work), 0.0, list[Coming]()
    for seconds, predicted in work:
        at += draw.expovariate(rate)
        jobs.append(Coming(at, seconds, predicted))
    return jobs


def latencies(jobs: Sequence[Coming], slots: int, schedule: Scheduler) -> list[float]:
    """Seconds from the coming of each job to its end, in the order in which they began."""
    ends, waiting, found = list[float](), list[QueuedJob](), list[float]()
    left, now = list(reversed(jobs)), 0.0
    while left or waiting:
        while left and left[-1].at <= now:
            own = left.pop()
            waiting.append(QueuedJob(own.at, own.predicted, 1, own))
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        while len(ends) < slots and (chosen := schedule.next_request(waiting, 1, batch_is_empty=False)):
            waiting.remove(chosen)
            heapq.heappush(ends, now + chosen.job.seconds)
            found.append(now + chosen.job.seconds - chosen.job.at)
        now = min([own.at for own in left[-1:]] + ends[:1])
    return found


def table(count: int = 3000, slots: int = 16) -> str:
    """Latencies by the bound, below and above what the slots can do."""
    rows = ["| load | overtaking | mean, s | p50 | p95 | p99 | longest |", "|---:|---:|" + "---:|" * 5]
    for share in SHARES:
        for bound in OVERTAKING:
            found = latencies(coming(count, slots, share), slots, Scheduler(bound))
            cells = [fmean(found), *(percentile(found, at) for at in (0.5, 0.95, 0.99)), max(found)]
            rows.append(f"| {share:.0%} | {bound:g} | {' | '.join(f'{n:.2f}' for n in cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
