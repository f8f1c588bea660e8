"""Routing: who gets a request, by nothing, by counts, by predicted work or by what nobody knows."""

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


def pick_two(seen: Sequence[float], first: int, second: int) -> int:
    """The less loaded of two replicas; the first where they are even."""
    return second if seen[second] < seen[first] else first


def pairs(count: int, replicas: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Two different replicas for every request, if there are two."""
    draw = np.random.default_rng((seed, 3))
    first = draw.integers(replicas, size=count)
    apart = draw.integers(1, replicas, size=count) if replicas > 1 else 0
    return first.tolist(), ((first + apart) % replicas).tolist()


def router(route: Route, count: int, replicas: int, seed: int = 0) -> Pick:
    """Return the function that chooses a replica; all routes draw the same pairs, so that they differ in one thing."""
    firsts, seconds = pairs(count, replicas, seed)
    if route == "random":
        return lambda fleet, request, now: firsts[request]
    if route == "round robin":
        return lambda fleet, request, now: request % replicas
    load = LOADS[route]

    def least_of_two(fleet: Fleet, request: int, now: float) -> int:
        one, other = firsts[request], seconds[request]
        return other if load(fleet, other, now) < load(fleet, one, now) else one

    return least_of_two


def stale(count: int, replicas: int, every: float, counts: bool, seed: int = 0) -> Pick:
    """Return a route to the least predicted work of two by reports of the replicas, at regular times of each.

    With `counts` the router adds what it has sent since a report, as one router can and many cannot.
    """
    firsts, seconds = pairs(count, replicas, seed)
    seen, reported, next_report = [0.0] * replicas, 0, 0.0

    def least_of_two(fleet: Fleet, request: int, now: float) -> int:
        nonlocal reported, next_report
        while next_report <= now:
            replica = reported % replicas
            seen[replica] = fleet.predicted_at(replica, now)
            reported += 1
            next_report += every / replicas
        chosen = pick_two(seen, firsts[request], seconds[request])
        if counts:
            seen[chosen] += fleet.foreseen(request)
        return chosen

    return least_of_two
