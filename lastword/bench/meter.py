"""Meter: wall time, peak memory, kernel launches and busy time of calls on a device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")  # how their names begin
COPIES = ("Memcpy", "Memset")


@dataclass(frozen=True)
class Timed:
    """Calls of one kind, timed."""

    ms: int | float  # the median
    runs: int
    peak_mb: float | None  # device memory beyond what was held before; None on a CPU
    first: int | float = 0  # seconds of the first call to warm up


@dataclass(frozen=True)
class Activity:
    """What a call made the device do."""

    # Calls of the host that start kernels, a graph of them counted once; None: none was traced.
    launches: int | float | None
    kernels: int | float  # that ran on the device
    busy_ms: int | float  # in which at least one of them, or a copy, ran

    def less(self, other: Activity, by: int) -> Activity:
        """What this did more than another, divided."""
        known = None not in (self.launches, other.launches)
        return Activity(
            ((self.launches or 0) - (other.launches or 0)) / by if known else None,
            (self.kernels - other.kernels) / by,
            (self.busy_ms - other.busy_ms) / by,
        )


@dataclass(frozen=True)
class Meter:
    """How often calls are made: `warm_up` times first, then `repeats` times or as many as fit `seconds`."""

    device: torch.device
    repeats: int = 3
    warm_up: int = 1
    seconds: int | float = 2  # at least one call is timed, however long it takes

    def median(self, call: Callable[[], object], warm: Callable[[], object] | None = None) -> Timed:
        """Wall time of a call, the device's work included; `warm` is a shorter call to warm up with."""
        held = self._start()
        first = self._warm(warm or call)
        times: list[int | float] = []
        while not times or (len(times) < self.repeats and sum(times) < self.seconds):
            times.append(self.time(call))
        return Timed(1000 * statistics.median(times), len(times), self._peak(held), first)

    def difference(
        self,
        less: Callable[[], object],
        more: Callable[[], object],
        by: int,
        *,
        trace: bool = False,
    ) -> tuple[Timed, Activity | None]:
        """What `more` takes beyond `less`, divided: what both do only once is in neither.

        With `trace` both are made once more under the profiler, which takes seconds.
        """
        held = self._start()
        self._warm(lambda: (less(), more()))
        found: list[float] = []
        spent = 0.0
        while not found or (len(found) < self.repeats and spent < self.seconds):
            short, long = self.time(less), self.time(more)
            found.append((long - short) / by)
            spent += short + long
        timed = Timed(1000 * max(statistics.median(found), 0.0), len(found), self._peak(held))
        if not trace:
            return timed, None
        few, many = self.activity(less), self.activity(more)
        return timed, None if few is None or many is None else many.less(few, by)

    def time(self, call: Callable[[], object]) -> int | float:
        """Seconds of one call, the device's work included."""
        self.wait()
        began = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - began

    def activity(self, call: Callable[[], object]) -> Activity | None:
        """Launches, kernels and busy time of one call; None on a CPU or where nothing could be traced."""
        if self.device.type != "cuda":
            return None
        self.wait()
        with profile(activities=[ProfilerActivity.CUDA]) as traced:
            call()
            self.wait()
        results: Any = traced.profiler
        return activity_of(results.kineto_results.events())

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _warm(self, call: Callable[[], object]) -> int | float:
        """Seconds of the first call; one that takes longer than all timed ones may is made once."""
        spent: list[int | float] = []
        while len(spent) < self.warm_up and sum(spent) < self.seconds:
            spent.append(self.time(call))
        return spent[0] if spent else 0

    def _start(self) -> int:
        """Bytes that are held before a line begins."""
        if self.device.type != "cuda":
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _peak(self, held: int) -> float | None:
        if self.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.device) - held) / 2**20


def activity_of(events: Iterable[Any]) -> Activity | None:
    """A trace in three numbers; None if the device did nothing that was traced."""
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
    """The length of the union of spans, which may overlap: streams run side by side."""
    total, end = 0, -1
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
