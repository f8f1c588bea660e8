"""Discrete-event simulation of replicas that batch continuously.

The rows of a replica share its forward passes: a step advances every row by one pass and takes the fixed seconds
of a pass plus the seconds of the tokens of all rows. Between two events nothing changes, so the state of a replica
is its last state plus the steps since then. The tokens of a row are spread evenly over its passes. A probe delays
all rows of the replica that receives the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale.cost import Numbers, PassCost
from benchmarks.scale.natural import Work

NEVER = float("inf")
SAME_STEP = 1e-6  # in steps: rows that end within this distance finish in the same event


@dataclass(frozen=True)
class Site:
    """The number of replicas and the properties of each."""

    replicas: int
    slots: int = 16
    overtaking: float = 0.0  # as in `Scheduler`; 0: first come, first served


@dataclass
class Fleet:
    """The state of all replicas; a request is an index of `work`."""

    site: Site
    cost: PassCost
    work: Work
    arrivals: list[float]
    rows: list[list[tuple[float, int, float]]] = field(init=False)  # end in steps, request, predicted end in steps
    waiting: list[list[tuple[float, int]]] = field(init=False)  # priority, request
    queued: list[float] = field(init=False)  # predicted seconds of the waiting requests
    queued_true: list[float] = field(init=False)
    latencies: list[float] = field(init=False)  # NaN until a request is finished
    busy: float = 0.0  # seconds of all replicas in which a probe or a pass ran
    probing: float = 0.0  # seconds of `busy` in which a probe ran

    def __post_init__(self) -> None:
        count, cost, work = self.site.replicas, self.cost, self.work
        self.rows, self.waiting = [[] for _ in range(count)], [[] for _ in range(count)]
        self.queued, self.queued_true = [0.0] * count, [0.0] * count
        self.latencies = [float("nan")] * len(work)
        self._steps = [0.0] * count  # done by each replica
        self._since = [0.0] * count  # time up to which the steps are counted
        self._step = [cost.fixed] * count  # seconds of a step with the present rows
        self._version = [0] * count  # of each replica; events of earlier versions are void
        self._events: list[tuple[float, int, int]] = [(NEVER, 0, 0)]
        self._passes, self._predicted = work.passes.tolist(), work.predicted_passes.tolist()
        true = work.seconds(cost, self.site.slots)
        predicted = work.predicted_seconds(cost, self.site.slots)
        self._true, self._true_pass = true.tolist(), (true / work.passes).tolist()
        self._foreseen = predicted.tolist()
        self._predicted_pass = (predicted / work.predicted_passes).tolist()
        self._row = (cost.token * work.tokens_computed / work.passes).tolist()  # seconds that a row adds to a step
        self._probe = work.probe_seconds(cost).tolist()
        full = cost.fixed + self.site.slots * float(np.mean(self._row))
        self._delay = self.site.overtaking * full  # seconds of priority per predicted pass

    def until(self, now: float) -> None:
        """Process all events up to this time."""
        events = self._events
        while events[0][0] <= now:
            at, replica, version = heappop(events)
            if at == NEVER:
                heappush(events, (NEVER, 0, 0))
                return
            if version == self._version[replica]:
                self._finish(replica, at)

    def foreseen(self, request: int) -> float:
        """Return the predicted seconds of a request."""
        return self._foreseen[request]

    def arrive(self, request: int, replica: int, now: float) -> None:
        """Send a request to a replica, which probes it and starts or queues it."""
        self._move(replica, now)
        probe = self._probe[request]
        if probe:
            self._since[replica] += probe
            self.busy += probe
            self.probing += probe
        if len(self.rows[replica]) < self.site.slots:
            self._begin(replica, request)
        else:
            priority = now + self._delay * self._predicted[request]
            heappush(self.waiting[replica], (priority, request))
            self.queued[replica] += self._foreseen[request]
            self.queued_true[replica] += self._true[request]
            if not probe:
                return
        self._expect(replica)

    def requests_at(self, replica: int) -> int:
        """Return the number of requests at a replica, active or waiting."""
        return len(self.rows[replica]) + len(self.waiting[replica])

    def predicted_at(self, replica: int, now: float) -> float:
        """Return the predicted seconds of remaining work; a row beyond its prediction counts as one block."""
        done, block = self._done(replica, now), self.work.block
        seconds = self.queued[replica]
        for _, request, end in self.rows[replica]:
            steps = end - done
            seconds += (steps if steps > block else block) * self._predicted_pass[request]
        return seconds

    def true_at(self, replica: int, now: float) -> float:
        """Return the true seconds of remaining work, which a router cannot know."""
        done, seconds = self._done(replica, now), self.queued_true[replica]
        for end, request, _ in self.rows[replica]:
            seconds += (end - done) * self._true_pass[request]
        return seconds

    def _done(self, replica: int, now: float) -> float:
        ago = now - self._since[replica]
        return self._steps[replica] + (ago / self._step[replica] if ago > 0 else 0.0)

    def _move(self, replica: int, now: float) -> None:
        """Count the steps up to now; a probe delays them."""
        ago = now - self._since[replica]
        if ago > 0:
            if self.rows[replica]:
                self._steps[replica] += ago / self._step[replica]
                self.busy += ago
            self._since[replica] = now

    def _begin(self, replica: int, request: int) -> None:
        done = self._steps[replica]
        row = (done + self._passes[request], request, done + self._predicted[request])
        heappush(self.rows[replica], row)
        self._step[replica] += self._row[request]

    def _finish(self, replica: int, now: float) -> None:
        rows, waiting = self.rows[replica], self.waiting[replica]
        self.busy += now - self._since[replica]
        self._since[replica], self._steps[replica] = now, rows[0][0]
        while rows and rows[0][0] <= self._steps[replica] + SAME_STEP:
            request = heappop(rows)[1]
            self.latencies[request] = now - self.arrivals[request]
            self._step[replica] -= self._row[request]
            if waiting:
                following = heappop(waiting)[1]
                self.queued[replica] -= self._foreseen[following]
                self.queued_true[replica] -= self._true[following]
                self._begin(replica, following)
        if rows:
            self._expect(replica)
        else:
            self._step[replica] = self.cost.fixed  # resets rounding errors

    def _expect(self, replica: int) -> None:
        """Add the event of the next row that ends, which is void if the replica changes before."""
        steps = self.rows[replica][0][0] - self._steps[replica]
        version = self._version[replica] = self._version[replica] + 1
        at = self._since[replica] + steps * self._step[replica]
        heappush(self._events, (at, replica, version))


Pick = Callable[[Fleet, int, float], int]  # returns the replica of a request


@dataclass(frozen=True)
class Outcome:
    """The latencies of all requests and the use of the replicas."""

    arrivals: Numbers
    latencies: Numbers
    tokens: Numbers
    busy: float  # share of the time of all replicas until the last request arrived
    probing: float  # share of the time that probes took

    def _after_warm_up(self) -> NDArray[np.bool_]:
        """Return the mask of the last four fifths of the requests, which did not arrive at empty replicas."""
        return np.arange(len(self.arrivals)) >= len(self.arrivals) // 5

    def percentile(self, share: float) -> float:
        """Return a percentile of the latency in seconds."""
        return float(np.percentile(self.latencies[self._after_warm_up()], 100 * share))

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of the answers that ended after the first fifth of the arrivals."""
        first, last = self.arrivals[len(self.arrivals) // 5], self.arrivals[-1]
        ends = self.arrivals + self.latencies
        return float(self.tokens[(first <= ends) & (ends <= last)].sum() / (last - first))


def simulate(site: Site, cost: PassCost, work: Work, arrivals: Numbers, pick: Pick) -> Outcome:
    """Send every request to the replica that `pick` returns and simulate until all requests are finished."""
    times = arrivals.tolist()
    fleet = Fleet(site, cost, work, times)
    for request, now in enumerate(times):
        fleet.until(now)
        fleet.arrive(request, pick(fleet, request, now), now)
    available = site.replicas * (times[-1] or 1.0)  # all requests may arrive at time 0
    busy, probing = fleet.busy / available, fleet.probing / available
    fleet.until(NEVER)
    return Outcome(arrivals, np.array(fleet.latencies), work.tokens, busy, probing)


def poisson(count: int, rate: float, seed: int = 0) -> Numbers:
    """Return the arrival times of a Poisson process."""
    return np.cumsum(np.random.default_rng((seed, 2)).exponential(1 / rate, count))
