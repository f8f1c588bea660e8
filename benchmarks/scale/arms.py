"""Arms: what a fleet knows and does with it, and one run of an arm."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.scale.cost import PassCost
from benchmarks.scale.fleet import Outcome, Site, poisson, simulate
from benchmarks.scale.natural import Asked, Canvas, Traffic, Work, work
from benchmarks.scale.routing import Route, router
from lastword.serve.scheduler import Scheduler

SLOTS = 16


@dataclass(frozen=True)
class Arm:
    """A canvas, who gets a request, and who goes first on a replica."""

    canvas: Canvas
    route: Route
    ordered: bool = False  # shortest predicted first with ageing, as the server has it

    @property
    def overtaking(self) -> float:
        """As a server's schedule says it."""
        return Scheduler().overtaking if self.ordered else 0.0


ARMS: dict[str, Arm] = {
    "canvas 1024": Arm("fixed", "requests"),
    "canvas 1024, stop at end": Arm("stop", "requests"),
    "predicted, random": Arm("predicted", "random"),
    "predicted, round robin": Arm("predicted", "round robin"),
    "predicted, least requests": Arm("predicted", "requests"),
    "predicted, least predicted work": Arm("predicted", "predicted"),
    "the same, shortest first": Arm("predicted", "predicted", ordered=True),
    "predicted, least true work": Arm("predicted", "true"),
}
BEST = "predicted, least predicted work"

TRAFFIC: dict[str, Traffic] = {
    "one token a pass": Traffic("one token a pass"),
    "entropy bound": Traffic("entropy bound"),
    "one token a pass, wide": Traffic("one token a pass", (1, 2, 4, 8, 16)),
}


@dataclass
class Bench:
    """The prompts and the cost of a pass, which all runs share; requests are drawn once per size."""

    found: Asked
    cost: PassCost
    seed: int = 0
    _drawn: dict[tuple[Traffic, Canvas, int], Work] = field(default_factory=dict)

    def work(self, traffic: Traffic, canvas: Canvas, count: int) -> Work:
        """Draw requests."""
        key = (traffic, canvas, count)
        if key not in self._drawn:
            while len(self._drawn) >= 4:  # a million requests are 60 MB
                del self._drawn[next(iter(self._drawn))]
            self._drawn[key] = work(self.found, traffic, canvas, count, self.seed)
        return self._drawn[key]

    def capacity(self, traffic: Traffic, canvas: Canvas = "predicted") -> float:
        """Requests a second of one replica, on average over many."""
        return self.work(traffic, canvas, 100_000).capacity(self.cost, SLOTS)

    def run(self, traffic: Traffic, arm: Arm, rate: float, replicas: int, requests: int) -> Outcome:
        """Simulate requests at a rate."""
        site = Site(replicas, SLOTS, arm.overtaking)
        pick = router(arm.route, requests, replicas, self.seed)
        drawn = self.work(traffic, arm.canvas, requests)
        return simulate(site, self.cost, drawn, poisson(requests, rate, self.seed), pick)
