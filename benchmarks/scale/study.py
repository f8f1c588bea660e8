"""Study: every run that the record is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.scale.arms import ARMS, SLOTS, TRAFFIC, Bench
from benchmarks.scale.cost import errors, fitted, measured
from benchmarks.scale.limits import decision_seconds, longest_bound_by_probe, machines, pays, probe_share, stale_run
from benchmarks.scale.natural import ARMS as RECIPES, SLOTS as MOST_TOKENS, asked
from benchmarks.scale.record import Come, Curve, Line, Record, Stale
from benchmarks.serving.figures import r_squared
from lastword.bench import Setting

LOAD = 0.9  # of what replicas with a predicted canvas can do, at which arms are compared
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
STALE = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds
MOST_TOKENS_OF_PROBES = (256, 512, 1024, 2048)
TARGETS = {"one token a pass": 10.0, "entropy bound": 2.5, "one token a pass, wide": 20.0}
SOURCES = [
    "benchmarks/records/study/*/validation: predicted horizons (default recipe) and written lengths (fixed "
    "256), 1,500 prompts of each of the four embedded models",
    "benchmarks/records/fast/*.validation: passes of the same prompts, " + "; ".join(RECIPES.values()),
    "benchmarks/records/bench/llada-8b.json: seconds of passes by columns, one H200, bf16, LLaDA-8B shapes",
]


@dataclass(frozen=True)
class Size:
    """The size of the simulation: the lines at full size, sweeps and searches at a smaller one."""

    requests: int = 1_000_000
    replicas: int = 1000
    seed: int = 0

    @property
    def swept(self) -> tuple[int, int]:
        """Replicas and requests of a sweep: 500 requests a replica do for steady figures."""
        replicas = min(self.replicas, 200)
        return replicas, min(self.requests, 500 * replicas)


def study(size: Size, say: Callable[[str], None] = print) -> Record:
    """Make the record."""
    began = time.monotonic()
    lines = measured()
    bench = Bench(asked(), fitted(lines), size.seed)
    coming = {name: _come(bench, name, size) for name in TRAFFIC}
    rows, curves = list[Line](), list[Curve]()
    for name in TRAFFIC:
        for arm in ARMS:
            rows.append(_line(bench, name, arm, size, coming[name]))
            say(f"{time.monotonic() - began:.0f} s: {rows[-1].model_dump_json()}")
            if ARMS[arm].canvas != "fixed":  # above what it can do at every load
                curves.append(_curve(bench, name, arm, size))
    return Record(
        settings=_settings(size),
        sources=SOURCES,
        pass_ms=1e3 * bench.cost.fixed,
        column_us=1e6 * bench.cost.column,
        errors=errors(bench.cost, lines),
        traffic=coming,
        lines=rows,
        loads=list(LOADS),
        curves=curves,
        stale=[_stale(bench, name, size, every) for name in TRAFFIC for every in STALE],
        pays={str(most): list(found) if (found := pays(bench.cost, most)) else None for most in MOST_TOKENS_OF_PROBES},
        decision_us=1e6 * decision_seconds(size.replicas),
    )


def _settings(size: Size) -> dict[str, Setting]:
    replicas, requests = size.swept
    return {
        "requests": size.requests,
        "replicas": size.replicas,
        "slots": SLOTS,
        "load": LOAD,
        "max_tokens": MOST_TOKENS,
        "seed": size.seed,
        "sweep_replicas": replicas,
        "sweep_requests": requests,
    }


def _come(bench: Bench, name: str, size: Size) -> Come:
    traffic = TRAFFIC[name]
    drawn = bench.work(traffic, "predicted", 100_000)
    seconds = drawn.predicted_seconds(bench.cost, SLOTS), drawn.seconds(bench.cost, SLOTS)
    capacity = {canvas: bench.capacity(traffic, canvas) for canvas in ("fixed", "stop", "predicted")}
    return Come(
        scales=list(traffic.scales),
        tokens=float(drawn.tokens.mean()),
        r2=r_squared(*(own.tolist() for own in seconds)) or 0.0,
        capacity=dict(capacity),
        probe_ms=1e3 * float(drawn.probe_seconds(bench.cost).mean()),
        probe_share=probe_share(bench, traffic),
        probe_bound=longest_bound_by_probe(bench, traffic),
        target=TARGETS[name],
        rate=LOAD * capacity["predicted"] * size.replicas,
    )


def _line(bench: Bench, name: str, arm: str, size: Size, come: Come) -> Line:
    traffic, chosen = TRAFFIC[name], ARMS[arm]
    replicas, requests = size.swept
    found = machines(bench, traffic, chosen, come.rate * replicas / size.replicas, come.target, requests)
    many = found and round(found * size.replicas / replicas)
    kept = bench.run(traffic, chosen, come.rate, many, size.requests) if many else None
    bears = come.capacity[chosen.canvas] * size.replicas
    if come.rate > bears:
        rate = come.tokens * bears
        p50 = p95 = p99 = None
    else:
        run = bench.run(traffic, chosen, come.rate, size.replicas, size.requests)
        rate = run.tokens_per_second
        p50, p95, p99 = (run.percentile(share) for share in (0.5, 0.95, 0.99))
    return Line(
        traffic=name, arm=arm, p50=p50, p95=p95, p99=p99, tokens_per_second=rate, machines=many,
        machines_p95=kept.percentile(0.95) if kept else None,
    )  # fmt: skip


def _curve(bench: Bench, name: str, arm: str, size: Size) -> Curve:
    traffic, (replicas, requests) = TRAFFIC[name], size.swept
    rate = bench.capacity(traffic) * replicas
    runs = [bench.run(traffic, ARMS[arm], load * rate, replicas, requests) for load in LOADS]
    return Curve(traffic=name, arm=arm, p95=[run.percentile(0.95) for run in runs])


def _stale(bench: Bench, name: str, size: Size, every: float) -> Stale:
    traffic, (replicas, requests) = TRAFFIC[name], size.swept
    rate = LOAD * bench.capacity(traffic) * replicas
    alone, counting = (
        stale_run(bench, traffic, rate, replicas, requests, every, counts).percentile(0.95) for counts in (False, True)
    )
    return Stale(traffic=name, every=every, alone=alone, counting=counting)
