"""Fleet: replicas of so many slots, event by event, in seconds that passes cost.

The rows of a replica share its passes: each step gives every row one pass and takes the fixed seconds of a
pass and those of all their columns. Between two events nothing changes, so a replica is where it was plus
the steps that went by. A row's columns are spread evenly over its passes; a probe holds up the rows of the
replica that the request is sent to.
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
TOGETHER = 1e-6  # of a pass: rows that end this near to each other leave at once


@dataclass(frozen=True)
class Site:
    """The number of replicas and the properties of each."""

    replicas: int
    slots: int = 16
    overtaking: float = 0.0  # as a server's `Schedule` has it; 0: first come, first served


@dataclass
class Fleet:
    """The state of all replicas; numbers of requests index `work`."""

    site: Site
    cost: PassCost
    work: Work
    arrivals: list[float]
    rows: list[list[tuple[float, int, float]]] = field(init=False)  # end, request, predicted end: in steps
    waiting: list[list[tuple[float, int]]] = field(init=False)  # by who goes first
    queued: list[float] = field(init=False)  # seconds predicted of those who wait
    queued_true: list[float] = field(init=False)
    latencies: list[float] = field(init=False)  # NaN until a request is done
    busy: float = 0.0  # seconds of all replicas in which a probe or a pass ran
    probing: float = 0.0  # of them, in which a probe did

    def __post_init__(self) -> None:
        count, cost, work = self.site.replicas, self.cost, self.work
        self.rows, self.waiting = [[] for _ in range(count)], [[] for _ in range(count)]
        self.queued, self.queued_true = [0.0] * count, [0.0] * count
        self.latencies = [float("nan")] * len(work)
        self._steps = [0.0] * count  # that each replica has done
        self._since = [0.0] * count  # seconds; steps are counted up to then, and go on from then
        self._step = [cost.fixed] * count  # seconds of one, with the rows that are there
        self._version = [0] * count  # of a replica: events of earlier ones are void
        self._events: list[tuple[float, int, int]] = [(NEVER, 0, 0)]
        self._passes, self._predicted = work.passes.tolist(), work.predicted_passes.tolist()
        true = work.seconds(cost, self.site.slots)
        predicted = work.predicted_seconds(cost, self.site.slots)
        self._true, self._a_pass = true.tolist(), (true / work.passes).tolist()
        self._foreseen, self._likely = (predicted.tolist(), (predicted / work.predicted_passes).tolist())
        self._row = (cost.column * work.columns / work.passes).tolist()  # seconds of a row's pass
        self._probe = work.probe_seconds(cost).tolist()
        full = cost.fixed + self.site.slots * float(np.mean(self._row))
        self._ahead = self.site.overtaking * full  # seconds by which a predicted pass sets back

    def until(self, now: float) -> None:
        """Let everybody leave who is done by then."""
        events = self._events
        while events[0][0] <= now:
            at, replica, version = heappop(events)
            if at == NEVER:
                heappush(events, (NEVER, 0, 0))
                return
            if version == self._version[replica]:
                self._leave(replica, at)

    def foreseen(self, request: int) -> float:
        """Seconds of work that are predicted of a request."""
        return self._foreseen[request]

    def arrive(self, request: int, replica: int, now: float) -> None:
        """A request is sent to a replica, probed there, and takes a slot or waits."""
        self._move(replica, now)
        probe = self._probe[request]
        if probe:
            self._since[replica] += probe
            self.busy += probe
            self.probing += probe
        if len(self.rows[replica]) < self.site.slots:
            self._begin(replica, request)
        else:
            behind = now + self._ahead * self._predicted[request]
            heappush(self.waiting[replica], (behind, request))
            self.queued[replica] += self._foreseen[request]
            self.queued_true[replica] += self._true[request]
            if not probe:
                return
        self._expect(replica)

    def requests_at(self, replica: int) -> int:
        """Return the number of requests at a replica, active or waiting."""
        return len(self.rows[replica]) + len(self.waiting[replica])

    def predicted_at(self, replica: int, now: float) -> float:
        """Seconds of work left by prediction; a row that outlived its own is taken to need a block."""
        done, block, likely = self._done(replica, now), self.work.block, self._likely
        left = self.queued[replica]
        for _, request, end in self.rows[replica]:
            own = end - done
            left += (own if own > block else block) * likely[request]
        return left

    def true_at(self, replica: int, now: float) -> float:
        """Return the true seconds of work left, which no router knows."""
        done, left = self._done(replica, now), self.queued_true[replica]
        for end, request, _ in self.rows[replica]:
            left += (end - done) * self._a_pass[request]
        return left

    def _done(self, replica: int, now: float) -> float:
        ago = now - self._since[replica]
        return self._steps[replica] + (ago / self._step[replica] if ago > 0 else 0.0)

    def _move(self, replica: int, now: float) -> None:
        """Count the steps up to now; while a probe runs there are none."""
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

    def _leave(self, replica: int, now: float) -> None:
        rows, waiting = self.rows[replica], self.waiting[replica]
        self.busy += now - self._since[replica]
        self._since[replica], self._steps[replica] = now, rows[0][0]
        while rows and rows[0][0] <= self._steps[replica] + TOGETHER:
            request = heappop(rows)[1]
            self.latencies[request] = now - self.arrivals[request]
            self._step[replica] -= self._row[request]
            if waiting:
                after = heappop(waiting)[1]
                self.queued[replica] -= self._foreseen[after]
                self.queued_true[replica] -= self._true[after]
                self._begin(replica, after)
        if rows:
            self._expect(replica)
        else:
            self._step[replica] = self.cost.fixed  # rounding ends here

    def _expect(self, replica: int) -> None:
        """Note when the next row ends if nothing happens before."""
        left = self.rows[replica][0][0] - self._steps[replica]
        version = self._version[replica] = self._version[replica] + 1
        at = self._since[replica] + left * self._step[replica]
        heappush(self._events, (at, replica, version))


Pick = Callable[[Fleet, int, float], int]  # where a request goes


@dataclass(frozen=True)
class Outcome:
    """The outcome of the requests."""

    arrivals: Numbers
    latencies: Numbers
    tokens: Numbers
    busy: float  # share of all replicas' seconds until the last request came
    probing: float  # share that probes took

    def _after_warm_up(self) -> NDArray[np.bool_]:
        """Return the mask of requests that did not come to empty replicas: four of five."""
        return np.arange(len(self.arrivals)) >= len(self.arrivals) // 5

    def percentile(self, share: float) -> float:
        """Seconds from coming to end."""
        return float(np.percentile(self.latencies[self._after_warm_up()], 100 * share))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answers that ended between the first fifth of the requests and the last one."""
        first, last = self.arrivals[len(self.arrivals) // 5], self.arrivals[-1]
        ends = self.arrivals + self.latencies
        return float(self.tokens[(first <= ends) & (ends <= last)].sum() / (last - first))


def simulate(site: Site, cost: PassCost, work: Work, arrivals: Numbers, pick: Pick) -> Outcome:
    """Send every request where `pick` says; then wait until all are done."""
    times = arrivals.tolist()
    fleet = Fleet(site, cost, work, times)
    for request, now in enumerate(times):
        fleet.until(now)
        fleet.arrive(request, pick(fleet, request, now), now)
    spent = site.replicas * (times[-1] or 1.0)  # all may come at once
    busy, probing = fleet.busy / spent, fleet.probing / spent
    fleet.until(NEVER)
    return Outcome(arrivals, np.array(fleet.latencies), work.tokens, busy, probing)


def poisson(count: int, rate: float, seed: int = 0) -> Numbers:
    """When requests come, at random."""
    return np.cumsum(np.random.default_rng((seed, 2)).exponential(1 / rate, count))
