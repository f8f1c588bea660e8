"""Routed: the router's rule in simulated time, on columns that requests did take.

Seconds of a machine with other work say little about a router. Here a replica computes a fixed number of
tokens per second, shared by its running rows; the rule and the reports are those of `lastword.serve.routing`.
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
    """Columns of a request, as predicted when it came and as it took."""

    predicted: float
    took: float


def works(heard: Sequence[ClientReply]) -> list[Work]:
    """By the share of its guess that each recipe takes, as replicas learn it."""
    guesses = [
        uncached_tokens(reply.predicted or float(reply.horizon), len(reply.asked.job.prompt_ids) + reply.horizon)
        for reply in heard
    ]
    shares = {}
    for name in {reply.asked.recipe for reply in heard}:
        mine = [at for at, reply in enumerate(heard) if reply.asked.recipe == name]
        shares[name] = sum(heard[at].columns for at in mine) / sum(guesses[at] for at in mine)
    return [Work(shares[reply.asked.recipe] * guess, float(reply.columns)) for reply, guess in zip(heard, guesses)]


@dataclass
class Server:
    """A replica: active rows share its columns per second, others wait in turn."""

    slots: int
    speed: float
    active: list[list[float]] = field(default_factory=list)  # columns left, came, predicted, done
    waiting: deque[list[float]] = field(default_factory=deque)
    report: ReplicaReport = field(default_factory=ReplicaReport)

    def forward(self, seconds: float, now: float, over: list[float]) -> None:
        """Advance to `now`."""
        at = now - seconds
        while self.active and at < now:
            share = self.speed / len(self.active)
            step = min(now - at, min(row[0] for row in self.active) / share)
            at += step
            for row in self.active:
                row[0] -= share * step
                row[3] += share * step
            over += [at - row[1] for row in self.active if row[0] <= 1e-6]
            self.active = [row for row in self.active if row[0] > 1e-6]
            while self.waiting and len(self.active) < self.slots:
                self.active.append(self.waiting.popleft())

    def take(self, work: Work, now: float) -> None:
        row = [work.took, now, work.predicted, 0.0]
        (self.active if len(self.active) < self.slots else self.waiting).append(row)

    @property
    def in_hand(self) -> int:
        return len(self.active) + len(self.waiting)

    def say(self) -> None:
        """A report, as a replica makes it."""
        columns = sum((max(own[2] - own[3], 1.0) for own in (*self.active, *self.waiting)), 0.0)
        each = columns / self.in_hand if self.in_hand else self.report.tokens_per_request
        self.report = ReplicaReport(columns, each, self.in_hand)


def p95(
    found: Sequence[Work],
    routing: str,
    *,
    replicas: int = 2,
    slots: int = 4,
    load: float = 0.8,
    speed: float = 4400.0,  # columns a second of a replica, about what was seen here
    requests: int = 20_000,
    seed: int = 0,
) -> float:
    """Seconds that one in twenty requests exceeds, at a share of what the replicas can do."""
    coming, draw = random.Random(seed), random.Random(seed + 1)  # the same requests for every rule
    servers = [Server(slots, speed) for _ in range(replicas)]
    mean = sum(own.took for own in found) / len(found)
    rate, now, next_report, over = load * replicas * speed / mean, 0.0, 0.0, list[float]()
    for _ in range(requests):
        comes, own = now + coming.expovariate(rate), coming.choice(found)
        while now < comes:
            until = min(comes, next_report)
            for server in servers:
                server.forward(until - now, until, over)
            now = until
            if now == next_report:
                next_report += REPORT_SECONDS
                for server in servers:
                    server.say()
        if routing == "random":
            chosen = draw.randrange(replicas)
        else:
            reports = {at: one.report for at, one in enumerate(servers)}
            chosen = choose_replica(reports, dict(enumerate(one.in_hand for one in servers)), draw)
        servers[chosen].take(own, now)
    return percentile(over, 0.95)
