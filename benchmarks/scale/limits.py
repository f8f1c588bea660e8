"""Limits: machines for a p95, what stale reports cost, what a decision costs, and when a probe pays."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np

from benchmarks.scale.arms import ARMS, BEST, SLOTS, Arm, Bench
from benchmarks.scale.cost import PassCost
from benchmarks.scale.fleet import Outcome, Site, poisson, simulate
from benchmarks.scale.natural import BLOCK, PROMPTS, Traffic
from benchmarks.scale.routing import pick_two, stale

MOST_TIMES = 20  # replicas above what capacity asks for, before a target counts as out of reach
DECISIONS = 200_000


def machines(bench: Bench, traffic: Traffic, arm: Arm, rate: float, target: float, requests: int) -> int | None:
    """The fewest replicas whose p95 meets the target at this rate; None if none do."""

    def meets(replicas: int) -> bool:
        found = bench.run(traffic, arm, rate, replicas, requests)
        return found.percentile(0.95) <= target

    least = math.ceil(rate / bench.capacity(traffic, arm.canvas))
    fails, works = max(least // 2, 1), least
    while not meets(works):
        if works > MOST_TIMES * least:
            return None
        fails, works = works, math.ceil(1.3 * works)
    while works - fails > 1:
        middle = (fails + works) // 2
        fails, works = (fails, middle) if meets(middle) else (middle, works)
    return works


def stale_run(
    bench: Bench, traffic: Traffic, rate: float, replicas: int, requests: int, every: float, counts: bool
) -> Outcome:
    """Simulate the least predicted work of two by reports that are up to `every` seconds old."""
    pick = stale(requests, replicas, every, counts, bench.seed)
    drawn = bench.work(traffic, ARMS[BEST].canvas, requests)
    site = Site(replicas, SLOTS)
    return simulate(site, bench.cost, drawn, poisson(requests, rate, bench.seed), pick)


def decision_seconds(replicas: int) -> float:
    """Return the seconds of one decision in this process: draw two, compare, add the request; no network."""
    seen, draw = [random.Random(0).random() for _ in range(replicas)], random.Random(1).random
    began = time.perf_counter()
    for _ in range(DECISIONS):
        chosen = pick_two(seen, int(draw() * replicas), int(draw() * replicas))
        seen[chosen] += 0.001
    return (time.perf_counter() - began) / DECISIONS


def pays(cost: PassCost, most: int, prompt: float = sum(PROMPTS) / 2) -> tuple[int, int] | None:
    """Lengths, in whole blocks, for which a probe of `most` slots saves more than it costs.

    Against a canvas of `most` slots that is left where the answer ends: what is saved are the columns behind
    the answer, once a block. The prediction is taken to be right. None: it never pays.
    """
    blocks = np.arange(1, most // BLOCK + 1)
    saved = cost.column * blocks * (most - BLOCK * blocks)
    (paid,) = np.nonzero(saved > cost.seconds(prompt + most))
    return (int(BLOCK * blocks[paid[0]]), int(BLOCK * blocks[paid[-1]])) if len(paid) else None


def probe_share(bench: Bench, traffic: Traffic) -> float:
    """Return the share of a replica's time that probes take at full load; below that it is in proportion."""
    drawn = bench.work(traffic, "predicted", 100_000)
    return drawn.capacity(bench.cost, SLOTS) * float(drawn.probe_seconds(bench.cost).mean())


def longest_bound_by_probe(bench: Bench, traffic: Traffic) -> int:
    """Return the longest answer, in whole blocks, that takes a replica less time than its probe."""
    shorter = 0
    drawn = bench.work(replace(traffic, scales=(1, 2, 4, 8)), "predicted", 100_000)
    took, probes = drawn.seconds(bench.cost, SLOTS), drawn.probe_seconds(bench.cost)
    for length in range(BLOCK, 1024, BLOCK):
        near = abs(drawn.tokens - length) < BLOCK
        if near.any() and took[near].mean() > probes[near].mean():
            break
        shorter = length
    return shorter
