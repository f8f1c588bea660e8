"""Routing rules: random, round robin, or the less loaded of two by requests, predicted work or true work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from benchmarks.scale.fleet import Fleet, Pick

Route = Literal["random", "round robin", "requests", "predicted", "true"]
Load = Callable[[Fleet, int, float], float]

LOADS: dict[Route, Load] = {
    "requests": lambda fleet, replica, now: fleet.requests_at(replica),
    "predicted": lambda fleet, replica, now: fleet.predicted_at(replica, now),
    "true": lambda fleet, replica, now: fleet.true_at(replica, now),
}


def pick_two(loads: Sequence[float], first: int, second: int) -> int:
    """Return the less loaded of two replicas, or the first if the loads are equal."""
    return second if loads[second] < loads[first] else first


def pairs(count: int, replicas: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Draw two different replicas for every request, if there are two."""
    draw = np.random.default_rng((seed, 3))
    first = draw.integers(replicas, size=count)
    apart = draw.integers(1, replicas, size=count) if replicas > 1 else 0
    return first.tolist(), ((first + apart) % replicas).tolist()


def router(route: Route, count: int, replicas: int, seed: int = 0) -> Pick:
    """Return the function that chooses a replica; all routing rules use the same pairs of replicas."""
    firsts, seconds = pairs(count, replicas, seed)
    if route == "random":
        return lambda fleet, request, now: firsts[request]
    if route == "round robin":
        return lambda fleet, request, now: request % replicas
    load = LOADS[route]

    def least_of_two(fleet: Fleet, request: int, now: float) -> int:
        first, second = firsts[request], seconds[request]
        return second if load(fleet, second, now) < load(fleet, first, now) else first

    return least_of_two


def stale(count: int, replicas: int, every: float, counts: bool, seed: int = 0) -> Pick:
    """Return routing by the least predicted work of two, based on periodic reports of the replicas.

    With `counts` the router adds the requests that it has sent since the last report, which is only correct if
    there is a single router.
    """
    firsts, seconds = pairs(count, replicas, seed)
    loads, reported, next_report = [0.0] * replicas, 0, 0.0

    def least_of_two(fleet: Fleet, request: int, now: float) -> int:
        nonlocal reported, next_report
        while next_report <= now:
            replica = reported % replicas
            loads[replica] = fleet.predicted_at(replica, now)
            reported += 1
            next_report += every / replicas
        chosen = pick_two(loads, firsts[request], seconds[request])
        if counts:
            loads[chosen] += fleet.foreseen(request)
        return chosen

    return least_of_two
