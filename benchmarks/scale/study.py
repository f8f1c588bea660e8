"""All simulations of the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.scale.arms import ARMS, BEST, BY_REQUESTS, SLOTS, TRAFFIC, Bench
from benchmarks.scale.cost import errors, fitted, measured
from benchmarks.scale.limits import (
    decision_seconds,
    longest_bound_by_probe,
    probe_share,
    replicas_for,
    stale_run,
    useful_probe,
)
from benchmarks.scale.natural import ARMS as RECIPES, SLOTS as MAX_TOKENS, load_prompts
from benchmarks.scale.record import Curve, Line, Record, SmallFleet, Stale, TrafficSummary
from benchmarks.serving.figures import r_squared
from lastword.bench import Setting

LOAD = 0.9  # at which arms are compared, relative to the capacity of replicas with a predicted canvas
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
SMALL_FLEETS = (2, 8)  # replicas
SMALL_SEEDS = 5
SMALL_REQUESTS = 40_000
STALE = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds
PROBED_MAX_TOKENS = (256, 512, 1024, 2048)
TARGETS = {"one token per pass": 10.0, "entropy bound": 2.5, "one token per pass, wide": 20.0}
SOURCES = [
    "benchmarks/records/study/*/validation: predicted horizons (default recipe) and written lengths (fixed "
    "256), 1,500 prompts of each of the four embedded models",
    "benchmarks/records/fast/*.validation: forward passes of the same prompts, " + "; ".join(RECIPES.values()),
    "benchmarks/records/bench/llada-8b.json: seconds of forward passes by tokens computed, one H200, bf16, shapes of "
    "LLaDA-8B",
]


@dataclass(frozen=True)
class Size:
    """The size of the simulation: lines have the full size, sweeps and searches a smaller one."""

    requests: int = 1_000_000
    replicas: int = 1000
    seed: int = 0

    @property
    def swept(self) -> tuple[int, int]:
        """The replicas and requests of a sweep; 500 requests per replica give stable results."""
        replicas = min(self.replicas, 200)
        return replicas, min(self.requests, 500 * replicas)


def study(size: Size, report: Callable[[str], None] = print) -> Record:
    """Run all simulations and return the record."""
    start = time.monotonic()
    lines = measured()
    bench = Bench(load_prompts(), fitted(lines), size.seed)
    traffic = {name: _summarise(bench, name, size) for name in TRAFFIC}
    rows, curves = list[Line](), list[Curve]()
    for name in TRAFFIC:
        for arm in ARMS:
            rows.append(_line(bench, name, arm, size, traffic[name]))
            report(f"{time.monotonic() - start:.0f} s: {rows[-1].model_dump_json()}")
            if ARMS[arm].canvas != "fixed":  # whose capacity every load exceeds
                curves.append(_curve(bench, name, arm, size))
    return Record(
        settings=_settings(size),
        sources=SOURCES,
        pass_ms=1e3 * bench.cost.fixed,
        token_us=1e6 * bench.cost.token,
        errors=errors(bench.cost, lines),
        traffic=traffic,
        lines=rows,
        loads=list(LOADS),
        curves=curves,
        stale=[_stale(bench, name, size, every) for name in TRAFFIC for every in STALE],
        small_fleets=[_small_fleet(bench, name, replicas) for name in TRAFFIC for replicas in SMALL_FLEETS],
        useful_probe={
            str(slots): list(lengths) if (lengths := useful_probe(bench.cost, slots)) else None
            for slots in PROBED_MAX_TOKENS
        },
        decision_us=1e6 * decision_seconds(size.replicas),
    )


def _settings(size: Size) -> dict[str, Setting]:
    replicas, requests = size.swept
    return {
        "requests": size.requests,
        "replicas": size.replicas,
        "slots": SLOTS,
        "load": LOAD,
        "max_tokens": MAX_TOKENS,
        "seed": size.seed,
        "sweep_replicas": replicas,
        "sweep_requests": requests,
    }


def _summarise(bench: Bench, name: str, size: Size) -> TrafficSummary:
    traffic = TRAFFIC[name]
    drawn = bench.work(traffic, "predicted", 100_000)
    seconds = drawn.predicted_seconds(bench.cost, SLOTS), drawn.seconds(bench.cost, SLOTS)
    capacity = {canvas: bench.capacity(traffic, canvas) for canvas in ("fixed", "stop", "predicted")}
    return TrafficSummary(
        scales=list(traffic.scales),
        tokens=float(drawn.tokens.mean()),
        r2=r_squared(*(values.tolist() for values in seconds)) or 0.0,
        capacity=dict(capacity),
        probe_ms=1e3 * float(drawn.probe_seconds(bench.cost).mean()),
        probe_share=probe_share(bench, traffic),
        probe_bound=longest_bound_by_probe(bench, traffic),
        target=TARGETS[name],
        rate=LOAD * capacity["predicted"] * size.replicas,
    )


def _line(bench: Bench, name: str, arm: str, size: Size, summary: TrafficSummary) -> Line:
    traffic, chosen = TRAFFIC[name], ARMS[arm]
    replicas, requests = size.swept
    rate = summary.rate * replicas / size.replicas
    needed = replicas_for(bench, traffic, chosen, rate, summary.target, requests)
    needed = needed and round(needed * size.replicas / replicas)
    check = bench.run(traffic, chosen, summary.rate, needed, size.requests) if needed else None
    capacity = summary.capacity[chosen.canvas] * size.replicas
    if summary.rate > capacity:
        tokens_per_second = summary.tokens * capacity
        p50 = p95 = p99 = None
    else:
        run = bench.run(traffic, chosen, summary.rate, size.replicas, size.requests)
        tokens_per_second = run.tokens_per_second
        p50, p95, p99 = (run.percentile(share) for share in (0.5, 0.95, 0.99))
    return Line(
        traffic=name, arm=arm, p50=p50, p95=p95, p99=p99, tokens_per_second=tokens_per_second,
        replicas=needed, replicas_p95=check.percentile(0.95) if check else None,
    )  # fmt: skip


def _curve(bench: Bench, name: str, arm: str, size: Size) -> Curve:
    traffic, (replicas, requests) = TRAFFIC[name], size.swept
    rate = bench.capacity(traffic) * replicas
    runs = [bench.run(traffic, ARMS[arm], load * rate, replicas, requests) for load in LOADS]
    return Curve(traffic=name, arm=arm, p95=[run.percentile(0.95) for run in runs])


def _small_fleet(bench: Bench, name: str, replicas: int) -> SmallFleet:
    traffic, changes = TRAFFIC[name], list[float]()
    rate = LOAD * bench.capacity(traffic) * replicas
    for seed in range(bench.seed, bench.seed + SMALL_SEEDS):
        seeded = replace(bench, seed=seed, _drawn={})
        arms = (ARMS[BY_REQUESTS], ARMS[BEST])
        by_requests, by_work = (
            seeded.run(traffic, arm, rate, replicas, SMALL_REQUESTS).percentile(0.95) for arm in arms
        )
        changes.append(by_work / by_requests - 1)
    return SmallFleet(traffic=name, replicas=replicas, change=sum(changes) / len(changes))


def _stale(bench: Bench, name: str, size: Size, every: float) -> Stale:
    traffic, (replicas, requests) = TRAFFIC[name], size.swept
    rate = LOAD * bench.capacity(traffic) * replicas
    alone, counting = (
        stale_run(bench, traffic, rate, replicas, requests, every, counts).percentile(0.95) for counts in (False, True)
    )
    return Stale(traffic=name, every=every, alone=alone, counting=counting)
