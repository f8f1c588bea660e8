"""Limits: replicas for a p95, stale load reports, the time of a routing decision, and when a probe saves time."""

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

MAX_FACTOR = 20  # replicas relative to the capacity, above which a target counts as unreachable
DECISIONS = 200_000


def replicas_for(bench: Bench, traffic: Traffic, arm: Arm, rate: float, target: float, requests: int) -> int | None:
    """Return the smallest number of replicas whose p95 meets the target at this rate; None if there is none."""

    def meets(replicas: int) -> bool:
        outcome = bench.run(traffic, arm, rate, replicas, requests)
        return outcome.percentile(0.95) <= target

    minimum = math.ceil(rate / bench.capacity(traffic, arm.canvas))
    fails, works = max(minimum // 2, 1), minimum
    while not meets(works):
        if works > MAX_FACTOR * minimum:
            return None
        fails, works = works, math.ceil(1.3 * works)
    while works - fails > 1:
        middle = (fails + works) // 2
        fails, works = (fails, middle) if meets(middle) else (middle, works)
    return works


def stale_run(
    bench: Bench, traffic: Traffic, rate: float, replicas: int, requests: int, every: float, counts: bool
) -> Outcome:
    """Simulate routing by least predicted work of two, with load reports that are up to `every` seconds old."""
    pick = stale(requests, replicas, every, counts, bench.seed)
    drawn = bench.work(traffic, ARMS[BEST].canvas, requests)
    site = Site(replicas, SLOTS)
    return simulate(site, bench.cost, drawn, poisson(requests, rate, bench.seed), pick)


def decision_seconds(replicas: int) -> float:
    """Return the seconds of one routing decision in this process, without the network."""
    loads, draw = [random.Random(0).random() for _ in range(replicas)], random.Random(1).random
    start = time.process_time()
    for _ in range(DECISIONS):
        chosen = pick_two(loads, int(draw() * replicas), int(draw() * replicas))
        loads[chosen] += 0.001
    return (time.process_time() - start) / DECISIONS


def useful_probe(cost: PassCost, slots: int, prompt: float = sum(PROMPTS) / 2) -> tuple[int, int] | None:
    """Return the range of lengths, in whole blocks, for which a probe of `slots` slots saves more than it costs.

    The alternative is a canvas of `slots` slots that stops at the end of the answer; a probe saves the tokens after
    the answer, once per block. The prediction is assumed to be correct. None: a probe never saves time.
    """
    blocks = np.arange(1, slots // BLOCK + 1)
    saved = cost.token * blocks * (slots - BLOCK * blocks)
    (useful,) = np.nonzero(saved > cost.seconds(prompt + slots))
    return (int(BLOCK * blocks[useful[0]]), int(BLOCK * blocks[useful[-1]])) if len(useful) else None


def probe_share(bench: Bench, traffic: Traffic) -> float:
    """Return the share of the time of a replica that probes take at full load; it is proportional to the load."""
    drawn = bench.work(traffic, "predicted", 100_000)
    return drawn.capacity(bench.cost, SLOTS) * float(drawn.probe_seconds(bench.cost).mean())


def longest_bound_by_probe(bench: Bench, traffic: Traffic) -> int:
    """Return the length of the longest answer, in whole blocks, that takes less time than its probe."""
    longest = 0
    drawn = bench.work(replace(traffic, scales=(1, 2, 4, 8)), "predicted", 100_000)
    answers, probes = drawn.seconds(bench.cost, SLOTS), drawn.probe_seconds(bench.cost)
    for length in range(BLOCK, 1024, BLOCK):
        near = abs(drawn.tokens - length) < BLOCK
        if near.any() and answers[near].mean() > probes[near].mean():
            break
        longest = length
    return longest
