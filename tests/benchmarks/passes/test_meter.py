"""Tests of the meter: differences of calls, and the summary of a profiler trace."""

from dataclasses import dataclass

import pytest
import torch

from benchmarks.passes.meter import Activity, Meter, activity_of, covered

CPU = torch.device("cpu")


def test_the_time_that_both_calls_take_cancels(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def call(seconds):
        def run():
            nonlocal now
            now += seconds

        return run

    setup, one_pass = 0.5, 0.01
    meter = Meter(CPU, repeats=3, seconds=100)
    timed, activity = meter.difference(call(setup + 2 * one_pass), call(setup + 12 * one_pass), 10)
    assert timed.ms == pytest.approx(10)
    assert activity is None  # nothing is traced on a CPU


@dataclass
class Event:
    """An event of a trace, with the methods of the profiler."""

    label: str
    start: int
    length: int
    device: str = "DeviceType.CUDA"

    def name(self):
        return self.label

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.length

    def device_type(self):
        return self.device


def test_a_trace_is_summarised_as_launches_kernels_and_busy_time():
    host = [
        Event(name, 0, 10**9, "DeviceType.CPU")
        for name in (
            "cudaLaunchKernel",
            "cudaLaunchKernelExC",
            "cuLaunchKernel",
            "cudaGraphLaunch",
            "cudaMemcpyAsync",
            "cudaDeviceSynchronize",
        )
    ]
    device = [
        Event("gemm", 0, 3 * 10**6),
        Event("softmax", 2 * 10**6, 2 * 10**6),  # on another stream
        Event("Memcpy DtoH (Device -> Pinned)", 9 * 10**6, 10**6),
    ]
    assert activity_of([*host, *device]) == Activity(launches=4, kernels=2, busy_ms=5.0)
    assert activity_of(host) is None
    assert activity_of(device) == Activity(launches=None, kernels=2, busy_ms=5.0)


def test_a_pass_that_replays_a_graph_is_one_launch():
    def run(passes):
        graph = [Event("cudaGraphLaunch", 0, 1, "DeviceType.CPU")] * passes
        block_start = [Event("cudaLaunchKernel", 0, 1, "DeviceType.CPU")] * 400
        return activity_of([*block_start, *graph, Event("gemm", 0, 10**6)])

    assert run(16).less(run(2), 14).launches == 1


def test_a_difference_is_traced_only_on_request(monkeypatch):
    traced = []  # calls

    def activity(meter, call):
        traced.append(call)
        return Activity(10.0 * len(traced), 10, 1)

    monkeypatch.setattr(Meter, "activity", activity)
    meter = Meter(CPU, repeats=1)
    assert meter.difference(lambda: None, lambda: None, 2)[1] is None
    assert not traced
    assert meter.difference(lambda: None, lambda: None, 2, trace=True)[1].launches == 5


def test_spans_that_overlap_count_once():
    assert covered([(5, 9), (0, 3), (2, 4), (6, 7)]) == 8
    assert covered([]) == 0


def test_the_activity_of_a_pass_is_the_difference_of_two_traces():
    assert Activity(50, 90, 7.0).less(Activity(10, 10, 1.0), 4) == Activity(10, 20, 1.5)
    assert Activity(None, 90, 7.0).less(Activity(10, 10, 1.0), 4).launches is None
