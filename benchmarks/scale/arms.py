"""Arms: a canvas with a routing rule and an order of the queue, and the simulation of an arm."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.scale.cost import PassCost
from benchmarks.scale.fleet import Outcome, Site, poisson, simulate
from benchmarks.scale.natural import Canvas, PromptData, Traffic, Work, draw_work
from benchmarks.scale.routing import Route, router
from lastword.serve.scheduler import Scheduler

SLOTS = 16


@dataclass(frozen=True)
class Arm:
    """A canvas, a routing rule, and the order of the queue of a replica."""

    canvas: Canvas
    route: Route
    ordered: bool = False  # the queue of the server: shortest predicted first, with ageing

    @property
    def overtaking(self) -> float:
        """The bound on overtaking of the scheduler; 0 means first come, first served."""
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
BY_REQUESTS = "predicted, least requests"

TRAFFIC: dict[str, Traffic] = {
    "one token per pass": Traffic("one token per pass"),
    "entropy bound": Traffic("entropy bound"),
    "one token per pass, wide": Traffic("one token per pass", (1, 2, 4, 8, 16)),
}


@dataclass
class Bench:
    """The prompts and the cost of a forward pass, which all runs share; requests are drawn once per size."""

    prompts: PromptData
    cost: PassCost
    seed: int = 0
    _drawn: dict[tuple[Traffic, Canvas, int], Work] = field(default_factory=dict)

    def work(self, traffic: Traffic, canvas: Canvas, count: int) -> Work:
        """Return `count` drawn requests."""
        key = (traffic, canvas, count)
        if key not in self._drawn:
            while len(self._drawn) >= 4:  # a million requests take 60 MB
                del self._drawn[next(iter(self._drawn))]
            self._drawn[key] = draw_work(self.prompts, traffic, canvas, count, self.seed)
        return self._drawn[key]

    def capacity(self, traffic: Traffic, canvas: Canvas = "predicted") -> float:
        """Return the requests per second that one replica can process on average."""
        return self.work(traffic, canvas, 100_000).capacity(self.cost, SLOTS)

    def run(self, traffic: Traffic, arm: Arm, rate: float, replicas: int, requests: int) -> Outcome:
        """Simulate requests at a rate in requests per second."""
        site = Site(replicas, SLOTS, arm.overtaking)
        pick = router(arm.route, requests, replicas, self.seed)
        drawn = self.work(traffic, arm.canvas, requests)
        return simulate(site, self.cost, drawn, poisson(requests, rate, self.seed), pick)
