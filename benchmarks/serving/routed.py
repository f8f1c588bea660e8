"""Simulation of the router with the tokens that measured requests computed.

Seconds on a machine with other work are too noisy to compare routing rules. Here a replica computes a fixed number
of tokens per second, which its running rows share. The rule and the reports are those of `lastword.serve.routing`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.serving.clients import ClientReply
from benchmarks.serving.figures import percentile
from lastword.serve.routing import REPORT_SECONDS, ReplicaReport, choose_replica
from lastword.serve.scheduler import uncached_tokens


class Work(NamedTuple):
    """The tokens that a request computes, as predicted at its arrival and as measured."""

    predicted: float
    measured: float


def works(replies: Sequence[ClientReply]) -> list[Work]:
    """Return the work of requests; predictions are scaled per recipe, as replicas do."""
    estimates = [
        uncached_tokens(reply.predicted or float(reply.horizon), len(reply.request.job.prompt_ids) + reply.horizon)
        for reply in replies
    ]
    ratios = {}
    for name in {reply.request.recipe for reply in replies}:
        of_recipe = [at for at, reply in enumerate(replies) if reply.request.recipe == name]
        ratios[name] = sum(replies[at].tokens_computed for at in of_recipe) / sum(estimates[at] for at in of_recipe)
    return [
        Work(ratios[reply.request.recipe] * estimate, float(reply.tokens_computed))
        for reply, estimate in zip(replies, estimates)
    ]


@dataclass
class Server:
    """A replica: its active rows share its tokens per second, other requests wait in a queue."""

    slots: int
    speed: float
    active: list[list[float]] = field(default_factory=list)  # tokens left, arrival, predicted tokens, done tokens
    waiting: deque[list[float]] = field(default_factory=deque)
    report: ReplicaReport = field(default_factory=ReplicaReport)

    def forward(self, seconds: float, now: float, latencies: list[float]) -> None:
        """Advance by `seconds` to `now` and append the latencies of finished requests."""
        at = now - seconds
        while self.active and at < now:
            share = self.speed / len(self.active)
            step = min(now - at, min(row[0] for row in self.active) / share)
            at += step
            for row in self.active:
                row[0] -= share * step
                row[3] += share * step
            latencies += [at - row[1] for row in self.active if row[0] <= 1e-6]
            self.active = [row for row in self.active if row[0] > 1e-6]
            while self.waiting and len(self.active) < self.slots:
                self.active.append(self.waiting.popleft())

    def take(self, work: Work, now: float) -> None:
        row = [work.measured, now, work.predicted, 0.0]
        (self.active if len(self.active) < self.slots else self.waiting).append(row)

    @property
    def num_requests(self) -> int:
        return len(self.active) + len(self.waiting)

    def update_report(self) -> None:
        """Make a load report as a replica does."""
        tokens = sum((max(row[2] - row[3], 1.0) for row in (*self.active, *self.waiting)), 0.0)
        mean = tokens / self.num_requests if self.num_requests else self.report.tokens_per_request
        self.report = ReplicaReport(tokens, mean, self.num_requests)


def p95(
    work: Sequence[Work],
    routing: str,
    *,
    replicas: int = 2,
    slots: int = 4,
    load: float = 0.8,
    speed: float = 4400.0,  # tokens per second of a replica, as measured on a CPU core
    requests: int = 20_000,
    seed: int = 0,
) -> float:
    """Return the 95th percentile of the latency at a load relative to the capacity of the replicas."""
    arrivals, draw = random.Random(seed), random.Random(seed + 1)  # the same requests for every rule
    servers = [Server(slots, speed) for _ in range(replicas)]
    mean = sum(item.measured for item in work) / len(work)
    rate, now, next_report, latencies = load * replicas * speed / mean, 0.0, 0.0, list[float]()
    for _ in range(requests):
        arrival, item = now + arrivals.expovariate(rate), arrivals.choice(work)
        while now < arrival:
            until = min(arrival, next_report)
            for server in servers:
                server.forward(until - now, until, latencies)
            now = until
            if now == next_report:
                next_report += REPORT_SECONDS
                for server in servers:
                    server.update_report()
        if routing == "random":
            chosen = draw.randrange(replicas)
        else:
            reports = {at: server.report for at, server in enumerate(servers)}
            chosen = choose_replica(reports, dict(enumerate(server.num_requests for server in servers)), draw)
        servers[chosen].take(item, now)
    return percentile(latencies, 0.95)
