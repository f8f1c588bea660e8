"""Kernel launches, kernels and busy time of calls on a device, and the ceilings of the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.passes.record import Ceilings
from lastword.bench import Timer, Timing

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")  # how their names begin
COPIES = ("Memcpy", "Memset")
ON_GPU, ON_CPU = (8192, 2**30), (256, 2**22)  # width of the square matrices, bytes of the copy
CALLS_AT_ONCE = 4


@dataclass(frozen=True)
class Activity:
    """Work of the device during a call, from a profiler trace."""

    launches: int | float | None  # host calls that start kernels; a graph is one; None if none was traced
    kernels: int | float
    busy_ms: int | float  # time in which a kernel or a copy ran

    def less(self, other: Activity, by: int) -> Activity:
        """Return the difference from another trace, divided by `by`."""
        known = None not in (self.launches, other.launches)
        return Activity(
            ((self.launches or 0) - (other.launches or 0)) / by if known else None,
            (self.kernels - other.kernels) / by,
            (self.busy_ms - other.busy_ms) / by,
        )


@dataclass(frozen=True)
class Meter(Timer):
    """A timer that also measures differences of calls and, on a GPU, traces them."""

    def difference(
        self, less: Callable[[], object], more: Callable[[], object], by: int, *, trace: bool = False
    ) -> tuple[Timing, Activity | None]:
        """Return the time of `more` minus that of `less`, divided by `by`; work done once in both cancels.

        With `trace` both are called once more under the profiler, which takes seconds.
        """
        allocated = self.reset_peak()
        self.time_calls(lambda: (less(), more()), self.warm_up)
        times: list[float] = []
        spent = 0.0
        while not times or (len(times) < self.repeats and spent < self.seconds):
            short, long = self.time(less), self.time(more)
            times.append((long - short) / by)
            spent += short + long
        timing = Timing(1000 * max(statistics.median(times), 0.0), len(times), self.peak_mb(allocated))
        if not trace:
            return timing, None
        few, many = self.activity(less), self.activity(more)
        return timing, None if few is None or many is None else many.less(few, by)

    def activity(self, call: Callable[[], object]) -> Activity | None:
        """Trace a call; None on a CPU or if nothing could be traced."""
        if self.device.type != "cuda":
            return None
        self.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as traced:
            call()
            self.synchronize()
        results: Any = traced.profiler
        return activity_of(results.kineto_results.events())


def activity_of(events: Iterable[Any]) -> Activity | None:
    """Summarise a trace; None if it has no work of the device."""
    launches, kernels = 0, 0
    spans: list[tuple[int, int]] = []
    for event in events:
        name, start = event.name(), event.start_ns()
        if str(event.device_type()).endswith("CUDA"):
            spans.append((start, start + event.duration_ns()))
            kernels += not name.startswith(COPIES)
        launches += name.startswith(LAUNCHES)
    return Activity(launches or None, kernels, covered(spans) / 1e6) if spans else None


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of spans, which overlap where streams run in parallel."""
    total, end = 0, -1
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def ceilings(meter: Meter, dtype: torch.dtype) -> Ceilings:
    """Measure TFLOP/s of a square product and GB/s of a copy, read and written bytes counted."""
    width, size = ON_GPU if meter.device.type == "cuda" else ON_CPU
    left, right = torch.randn(2, width, width, device=meter.device).to(dtype)
    source = torch.empty(size, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)

    def product() -> None:
        for _ in range(CALLS_AT_ONCE):
            left @ right

    def copy() -> None:
        for _ in range(CALLS_AT_ONCE):
            target.copy_(source)

    multiplied, copied = meter.median(product), meter.median(copy)
    return Ceilings(
        matrix=width,
        tflops=CALLS_AT_ONCE * 2 * width**3 / multiplied.ms / 1e9,
        gbs=CALLS_AT_ONCE * 2 * size / copied.ms / 1e6,
    )
