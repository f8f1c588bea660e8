"""Simulation of the order of the queue: `python -m benchmarks.serving.order`.

Requests occupy slots whose forward passes take equal time. The order is that of the server's `Scheduler`. Lengths are
pairs of predicted and written lengths of an embedded model. Nothing is timed, so the results are reproducible.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import NamedTuple

from benchmarks.passes.replay import kept_pairs
from benchmarks.serving.figures import percentile
from benchmarks.serving.load import ARMS
from lastword.serve.scheduler import QueuedRequest, Scheduler
from lastword.serve.settings import ServerSettings

OVERTAKING = (0.0, 2.0, 4.0, 8.0, 32.0, 1e6)
PAGE_OVERTAKING = (0.0, 8.0, 32.0)  # that the page shows
LOADS = (0.9, 1.05)  # relative to the capacity of the slots
WORK = (1, 1, 1, 1, 1, 1, 5, 5, 5, 8)  # relative forward passes of ten requests; `fast` has 1
TOKEN_SECONDS = 0.01
SLOW_TOKEN_SECONDS = 0.35  # so that the longest answers take most of the timeout
TIMEOUT = ServerSettings().timeout
ERROR = 0.3  # standard deviation of the logarithm of the factor between true and predicted seconds; kept pairs: 0.15
SEEDS = 20
MIN_SECONDS = 1e-9  # a shorter remaining time is zero

ORDERS = {
    "first come": ARMS["fcfs"].scheduler,
    "without deadlines": ARMS["without-deadlines"].scheduler,
    "with deadlines": ARMS["predicted"].scheduler,
}


class Job(NamedTuple):
    """A request: its arrival time, its true and predicted seconds, and its timeout."""

    at: float
    seconds: float
    predicted: float
    timeout: float = math.inf


@dataclass(eq=False)
class QueuedJob(QueuedRequest):
    """A job in the queue or in a slot; `predicted_seconds` is what remains, at least a twentieth."""

    number: int
    job: Job
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.job.seconds

    def advance(self, seconds: float) -> None:
        """Use a slot for some time."""
        self.left -= seconds
        taken = self.job.seconds - self.left
        self.predicted_seconds = max(self.job.predicted - taken, 0.05 * self.job.predicted)


class Outcome(NamedTuple):
    """The seconds that a job waited, its latency, and whether it was answered before its deadline."""

    waited: float
    seconds: float
    answered: bool


def draw_jobs(
    count: int,
    slots: int,
    load: float,
    seed: int = 0,
    *,
    token_seconds: float = TOKEN_SECONDS,
    error: float = 0.0,
    timeout: float = math.inf,
) -> list[Job]:
    """Draw `count` jobs that arrive in a Poisson process, at a rate that uses this share of the slots."""
    draw, pairs = random.Random(seed), kept_pairs().pairs
    drawn = [(draw.choice(pairs), draw.choice(WORK) * token_seconds) for _ in range(count)]
    errors = [math.exp(draw.gauss(0.0, error)) if error else 1.0 for _ in drawn]
    work = [
        (min(pair) * seconds * factor, pair[0] * seconds) for (pair, seconds), factor in zip(drawn, errors, strict=True)
    ]
    rate, at, jobs = load * slots / fmean(seconds for seconds, _ in work), 0.0, list[Job]()
    for seconds, predicted in work:
        at += draw.expovariate(rate)
        jobs.append(Job(at, seconds, predicted, timeout))
    return jobs


def simulate(jobs: Sequence[Job], slots: int, scheduler: Scheduler, clients: int | None = None) -> list[Outcome]:
    """Return the outcome of each job; with `clients`, a job arrives when an earlier one of its client has ended."""
    outcomes, queue, running = dict[int, Outcome](), list[QueuedJob](), list[QueuedJob]()
    starts, future, now, idle = dict[int, float](), list(reversed(list(enumerate(jobs)))), 0.0, clients or 0
    while len(outcomes) < len(jobs):
        while future and (idle if clients else future[-1][1].at <= now):
            number, job = future.pop()
            idle -= 1
            arrived = now if clients else job.at
            queue.append(QueuedJob(arrived, job.predicted, 1, number, job, deadline=arrived + job.timeout))
        while len(running) < slots and (chosen := scheduler.next_request(queue, running, 1, rows=slots, now=now)):
            queue.remove(chosen)
            running.append(chosen)
            starts[chosen.number] = now
        ends = [item.left for item in running] + [item.deadline - now for item in (*running, *queue)]
        step = min(ends + [math.inf if clients else item.at - now for _, item in future[-1:]])
        now += step
        for item in running:
            item.advance(step)
        for item in (*running, *queue):
            answered = item.left <= MIN_SECONDS
            if answered or item.deadline - now <= MIN_SECONDS:
                (running if item.number in starts else queue).remove(item)
                waited = starts.get(item.number, now) - item.arrived
                outcomes[item.number] = Outcome(waited, now - item.arrived, answered)
                idle += 1
    return [outcomes[number] for number in range(len(jobs))]


def latencies(jobs: Sequence[Job], slots: int, scheduler: Scheduler) -> list[float]:
    """Return the seconds from the arrival of each job to its end."""
    return [outcome.seconds for outcome in simulate(jobs, slots, scheduler)]


def table(bounds: Sequence[float] = OVERTAKING, count: int = 3000, slots: int = 16) -> str:
    """Return a table of latencies by the bound on overtaking, for loads below and above the capacity."""
    rows = ["| load | bound | mean, s | p50 | p95 | maximum |", "|---:|---:|" + "---:|" * 4]
    for load in LOADS:
        for bound in bounds:
            seconds = latencies(draw_jobs(count, slots, load), slots, Scheduler(bound))
            cells = [fmean(seconds), *(percentile(seconds, share) for share in (0.5, 0.95)), max(seconds)]
            rows.append(f"| {load:.0%} | {bound:g} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    return "\n".join(rows)


def one_long_job(seed: int, timeout: float = math.inf) -> list[Job]:
    """Return jobs of 5 seconds at 95% load of one slot; the 200th takes 100 seconds."""
    draw, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(800):
        at += draw.expovariate(0.95 / 5.0)
        seconds = 100.0 if number == 199 else 5.0
        jobs.append(Job(at, seconds, seconds, timeout))
    return jobs


def closed_loop(scheduler: Scheduler, seed: int, token_seconds: float = SLOW_TOKEN_SECONDS) -> list[Outcome]:
    """Return the outcomes of 200 requests from 64 clients with 16 slots."""
    jobs = draw_jobs(200, 16, 1.0, seed, token_seconds=token_seconds, error=ERROR, timeout=TIMEOUT)
    return simulate(jobs, 16, scheduler, clients=64)


def overload(scheduler: Scheduler, seed: int) -> list[Outcome]:
    """Return the outcomes of 500 requests that arrive at 105% of the capacity of 16 slots."""
    jobs = draw_jobs(500, 16, 1.05, seed, token_seconds=SLOW_TOKEN_SECONDS, error=ERROR, timeout=TIMEOUT)
    return simulate(jobs, 16, scheduler)


def long_answer(scheduler: Scheduler, seed: int) -> list[Outcome]:
    """Return the outcome of a long answer among short ones."""
    return [simulate(one_long_job(seed, TIMEOUT), 1, scheduler)[199]]


CASES: dict[str, Callable[[Scheduler, int], list[Outcome]]] = {
    "200 requests, 64 clients": closed_loop,
    "the same, 4 times as fast": partial(closed_loop, token_seconds=SLOW_TOKEN_SECONDS / 4),
    "100 s among 5 s, 95% load": long_answer,
}


def deadline_table(seeds: int = SEEDS) -> str:
    """Return a table of latencies and expired requests by the order of the queue."""
    rows = ["| load | order | mean, s | p50 | p95 | maximum | expired |", "|---|---|" + "---:|" * 5]
    for case, run in CASES.items():
        for order, scheduler in ORDERS.items():
            outcomes = [outcome for seed in range(seeds) for outcome in run(scheduler, seed)]
            seconds = [outcome.seconds for outcome in outcomes]
            cells = [fmean(seconds), percentile(seconds, 0.5), percentile(seconds, 0.95), max(seconds)]
            expired = sum(not outcome.answered for outcome in outcomes)
            rows.append(
                f"| {case} | {order} | {' | '.join(f'{cell:.0f}' for cell in cells)} | {expired} of {len(outcomes):,} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    print(f"{table()}\n\n{deadline_table()}")
