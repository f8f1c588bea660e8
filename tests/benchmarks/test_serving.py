"""Tests of the benchmark of the server: its figures, small loads, and (full) many requests over HTTP."""

import asyncio
from dataclasses import replace

import pytest

import lastword
from benchmarks.serving import __main__ as serving, lengths, order, paused
from benchmarks.serving.figures import (
    OTHER_TABLES,
    Correlation,
    page_table,
    page_tables,
    percentile,
    r_squared,
    read,
    table,
)
from benchmarks.serving.load import arm_of, make_requests, requests_of
from benchmarks.serving.run import Arrivals, over_http
from benchmarks.serving.served import ROOT, served
from lastword.errors import SettingError
from lastword.policies.length.fixed import Fixed
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings

SHORT = ("algebra", "reasoning", "complete_function")  # families that compute the fewest tokens
RECORDS = ROOT / "benchmarks" / "records" / "serving"


def test_percentiles_and_r_squared_of_small_samples():
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([*map(float, range(101))], 0.95) == 95.0
    assert r_squared([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert r_squared([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, -1.0, 1.0]) == pytest.approx(0.0)
    assert r_squared([1.0, 2.0], [5.0, 5.0]) is None


def test_arms_differ_in_the_canvas_or_in_the_scheduler():
    model = lastword.load("tiny-llada-base", device="cpu")
    requests = make_requests(model, 20, prompts=2)
    assert {request.recipe for request in requests} == {"careful", "fast", "paper"}
    assert requests == make_requests(model, 20, prompts=2)  # the same in every call
    for predicted, fixed in zip(requests, requests_of(arm_of("canvas"), requests), strict=True):
        assert fixed.job.recipe.length == Fixed(256)
        for axis in ("unmask", "commit", "cache", "block", "sampling"):
            assert getattr(predicted.job.recipe, axis) == getattr(fixed.job.recipe, axis)
        assert predicted.job.prompt_ids == fixed.job.prompt_ids
    for name in ("batches", "batches-fcfs", "fcfs", "overtaking=32"):
        assert requests_of(arm_of(name), requests) == requests
    assert len({arm_of(name).scheduler for name in ("predicted", "batches", "batches-fcfs", "fcfs")}) == 4
    with pytest.raises(SettingError, match="arm 'magic' is unknown"):
        arm_of("magic")


def test_overtaking_reduces_the_mean_latency_and_its_bound_the_maximum():
    """At a load above the capacity, and with recipes whose work differs."""
    jobs = order.draw_jobs(1200, 16, 1.05)
    mean, maximum = {}, {}
    for bound in (0.0, 8.0, 1e6):
        latencies = order.latencies(jobs, 16, Scheduler(bound))
        assert len(latencies) == 1200
        mean[bound], maximum[bound] = sum(latencies) / 1200, max(latencies)
    assert mean[1e6] < mean[8.0] < 0.8 * mean[0.0]
    assert maximum[8.0] < 0.7 * maximum[1e6]


def expired(outcomes):
    return [number for number, outcome in enumerate(outcomes) if not outcome.answered]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("run", [order.closed_loop, order.overload])
def test_deadlines_keep_requests_from_expiring_that_are_answered_in_order_of_arrival(run, seed):
    """Predictions are wrong by 30%; longer requests than predicted may expire in any order."""
    first_come, without, with_deadlines = (run(scheduler, seed) for scheduler in order.ORDERS.values())
    assert not set(expired(with_deadlines)) - set(expired(first_come))
    assert len(expired(without)) > len(expired(first_come))


def test_a_long_answer_among_short_ones_does_not_starve():
    first_come, without, with_deadlines = (
        [order.long_answer(scheduler, seed)[0] for seed in range(8)] for scheduler in order.ORDERS.values()
    )
    for fair, unfair, bounded in zip(first_come, without, with_deadlines, strict=True):
        assert fair.waited <= bounded.waited <= max(fair.waited, order.TIMEOUT / 4) + 100
        assert bounded.answered
        assert bounded.waited <= unfair.waited or not unfair.answered
    assert not all(outcome.answered for outcome in without)


def test_clients_of_a_closed_loop_wait_for_their_answers():
    jobs = order.draw_jobs(40, 4, 1.0, timeout=1000.0)
    outcomes = order.simulate(jobs, 4, Scheduler(overtaking=0.0), clients=4)
    assert [outcome.waited for outcome in outcomes] == [0.0] * 40
    assert [outcome.seconds for outcome in outcomes] == pytest.approx([job.seconds for job in jobs])
    late = [job._replace(timeout=job.seconds / 2) for job in jobs]
    outcomes = order.simulate(late, 4, Scheduler(), clients=4)
    assert expired(outcomes) == [*range(40)]
    assert [outcome.seconds for outcome in outcomes] == pytest.approx([job.timeout for job in late])


def test_a_job_does_not_wait_if_a_slot_is_free():
    latencies = order.latencies(order.draw_jobs(200, 16, 0.05), 16, Scheduler())
    assert max(latencies) < 0.01 * 8 * 256 + 1e-6


@pytest.mark.full
@pytest.mark.slow
def test_a_small_load_in_process(tmp_path, capsys):
    record = serving.main(
        "--requests 6 --clients 4 --batch-size 3 --mix fast=1 --prompts 1 --check 6 --families "
        f"{' '.join(SHORT)} --arms predicted fcfs --note idle --out {tmp_path}/small.json".split()
    )
    assert read(tmp_path / "small.json").settings == record.settings
    for line in record.lines:
        assert (line.requests, line.checked, line.equal) == (6, 6, 6)
        assert 0 < line.first_p50 <= line.p50 <= line.p95 <= line.p99
        assert line.tokens_computed > line.forward_passes > 6
        assert 1 <= line.rows_per_pass <= 3
    assert len({line.tokens for line in record.lines}) == 1
    assert isinstance(record.lines[0].correlations["fast"], Correlation)
    assert record.notes[-1] == "idle"
    assert capsys.readouterr().out.rstrip().endswith(table(record))
    assert "| predicted | 6 |" in table(record)


def test_lengths_are_replayed_for_random_weights():
    """The benchmark of 8B shapes on a GPU, with a tiny shape."""
    options = "--shape tiny --requests 12 --clients 6 --batch-size 4 --predicted 24 --shortest 8 --check 3"
    record = serving.main([*options.split(), "--arms", "predicted", "batches"])
    predicted, batches = record.lines
    assert predicted.tokens == batches.tokens > 12 * 10
    assert predicted.tokens_computed == batches.tokens_computed
    assert (predicted.checked, predicted.equal) == (3, 3)
    assert predicted.correlations["replayed"].forward_passes > 0.5
    assert "replayed" in record.notes[1]


def test_the_page_shows_the_latencies_of_every_kept_arm():
    parts = page_tables(RECORDS).split("\n\n")  # pairs of a sentence and a table
    paths = [path for path in sorted(RECORDS.glob("*.json")) if path.stem not in OTHER_TABLES]
    assert len(parts) == 2 * len(paths)
    for path, sentence, text in zip(paths, parts[::2], parts[1::2], strict=True):
        record = read(path)
        assert f"**{record.model}**, {record.hardware}, {record.dtype}:" in sentence
        assert f" {record.settings['requests']} requests from {record.settings['clients']} clients" in sentence
        head, _, *rows = text.splitlines()
        assert "tokens computed" in head
        for line, row in zip(record.lines, rows, strict=True):
            seconds = (line.mean, line.p50, line.p95, line.first_p50)
            cells = [line.arm, *(f"{value:.3g}" for value in seconds), f"{line.tokens_per_second:,.0f}"]
            cells += [f"{line.forward_passes:,}", f"{line.tokens_computed:,.0f}"]
            assert row == f"| {' | '.join(cells)} |"


def test_the_pages_show_expired_requests_and_length_probes():
    record = read(RECORDS / "deadlines.json")
    assert {line.arm: line.expired == 0 for line in record.lines} == {
        "fcfs": True,
        "without-deadlines": False,
        "predicted": True,
    }
    rows = page_table("deadlines", record).splitlines()[4:]
    for line, row in zip(record.lines, rows, strict=True):
        assert f" {line.maximum:.3g} | {line.expired} | {line.forward_passes} |" in row
    record = read(RECORDS / "lengths.json")
    rows = page_table("lengths", record).splitlines()[4:]
    for line, row in zip(record.lines, rows, strict=True):
        assert row.endswith(f" | {line.maximum:.3g} | {line.probes_per_second:.3g} |")


def test_an_expired_request_is_counted(monkeypatch):
    monkeypatch.setattr(paused, "PAUSE", 0.01)
    model = paused.PausedToy()
    requests = paused.make_requests(model, 6)
    late = replace(requests[0], job=replace(requests[0].job, max_new_tokens=64, timeout=0.2))
    line = asyncio.run(paused.measure("fcfs", model, [*requests[1:], late], 2))
    assert (line.requests, line.expired) == (6, 1)


@pytest.mark.full
def test_length_clients_are_counted():
    model = lastword.load("tiny-llada-base", device="cpu")
    requests = make_requests(model, 3, mix={"fast": 1}, families=SHORT[2:])
    line = asyncio.run(lengths.measure(model, requests, 1, 2))
    assert line.requests == 3
    assert line.probes_per_second > 0


def run_over_http(count, clients, batch_size, *, check, threads=1, **load):
    """Send requests over HTTP to a server process; `check` of the answers are compared with solo runs."""
    model = lastword.load("tiny-llada-base", device="cpu")
    requests = make_requests(model, count, **load)
    limits = ServerSettings(max_batch_size=batch_size, max_queue_size=clients)
    with served("tiny-llada-base", "predicted", limits, threads) as server:
        return asyncio.run(over_http("predicted", server, model, requests, Arrivals(clients), check))


def summary(line):
    """Return a sentence with latencies, throughput and memory."""
    return (
        f"\n{line.requests} requests: p50 {line.p50:.2f}, p95 {line.p95:.2f}, p99 {line.p99:.2f} s; first "
        f"text p50 {line.first_p50:.2f}, p95 {line.first_p95:.2f} s; {line.tokens_per_second:.0f} tokens/s; "
        f"{line.resident_200:.0f} MB, then {line.resident_end:.0f} MB"
    )


@pytest.mark.full
def test_a_small_load_over_http(capsys):
    line = run_over_http(12, 8, 4, check=12, mix={"fast": 1}, families=SHORT[1:2], prompts=2)
    with capsys.disabled():
        print(summary(line))
    assert (line.requests, line.equal) == (12, 12)
    assert line.tokens_computed > line.forward_passes > 0
    assert 1 <= line.rows_per_pass <= 4


@pytest.mark.full
def test_sixty_four_clients_get_one_correct_answer_per_request_and_memory_is_constant(capsys):
    mix = {"fast": 196, "careful": 3, "paper": 1}
    line = run_over_http(400, 64, 16, check=100, threads=2, mix=mix, families=SHORT[:2], prompts=8)
    with capsys.disabled():
        print(summary(line))
    assert (line.requests, line.checked, line.equal) == (400, 100, 100)
    assert line.resident_end <= 1.05 * line.resident_200
