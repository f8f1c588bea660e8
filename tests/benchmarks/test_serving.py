"""The load benchmark in miniature, and (full) at its size: answers right, none lost, memory flat."""

import asyncio

import pytest

import lastword
from benchmarks.serving import __main__ as serving, order
from benchmarks.serving.figures import Correlation, percentile, r_squared, read, table
from benchmarks.serving.load import arm_of, asked_by, requests
from benchmarks.serving.run import How, over_http
from benchmarks.serving.served import served
from lastword.errors import SettingError
from lastword.policies.length.fixed import Fixed
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings

SHORT = ("algebra", "reasoning", "complete_function")  # families that take the fewest columns


def test_percentiles_and_r_squared_by_hand():
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([*map(float, range(101))], 0.95) == 95.0
    assert r_squared([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert r_squared([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, -1.0, 1.0]) == pytest.approx(0.0)
    assert r_squared([1.0, 2.0], [5.0, 5.0]) is None


def test_arms_have_the_same_rules_and_differ_in_one_thing():
    model = lastword.load("tiny-llada-base", device="cpu")
    asked = requests(model, 20, prompts=2)
    assert {own.recipe for own in asked} == {"careful", "fast", "paper"}
    assert asked == requests(model, 20, prompts=2)  # the same every time
    for mine, theirs in zip(asked, asked_by(arm_of("canvas"), asked)):
        assert theirs.job.recipe.length == Fixed(256)
        for axis in ("unmask", "commit", "cache", "block", "sampling"):
            assert getattr(mine.job.recipe, axis) == getattr(theirs.job.recipe, axis)
        assert mine.job.prompt_ids == theirs.job.prompt_ids
    for name in ("batches", "batches-fcfs", "fcfs", "overtaking=32"):
        assert asked_by(arm_of(name), asked) == asked
    assert len({arm_of(name).schedule for name in ("predicted", "batches", "batches-fcfs", "fcfs")}) == 4
    with pytest.raises(SettingError, match="there is no arm"):
        arm_of("magic")


def test_overtaking_lowers_the_mean_and_its_bound_the_longest():
    """With more work than the slots can do, and recipes that differ in it."""
    jobs = order.coming(1200, 16, 1.05)
    mean, most = {}, {}
    for bound in (0.0, 8.0, 1e6):
        found = order.latencies(jobs, 16, Scheduler(bound))
        assert len(found) == 1200
        mean[bound], most[bound] = sum(found) / 1200, max(found)
    assert mean[1e6] < mean[8.0] < 0.8 * mean[0.0]
    assert most[8.0] < 0.7 * most[1e6]
    quiet = order.latencies(order.coming(200, 16, 0.05), 16, Scheduler())
    assert max(quiet) < 0.01 * 8 * 256 + 1e-6  # nobody waits where there is room


@pytest.mark.full
@pytest.mark.slow
def test_a_small_load_in_process(tmp_path, capsys):
    record = serving.main(
        "--requests 6 --clients 4 --slots 3 --mix fast=1 --prompts 1 --check 6 --families "
        f"{' '.join(SHORT)} --arms predicted fcfs --note alone --out {tmp_path}/small.json".split()
    )
    assert read(tmp_path / "small.json").settings == record.settings
    for line in record.lines:
        assert (line.requests, line.checked, line.equal) == (6, 6, 6)
        assert 0 < line.first_p50 <= line.p50 <= line.p95 <= line.p99
        assert line.columns > line.passes > 6
        assert 1 <= line.rows <= 3
    assert {own.tokens for own in record.lines} == {record.lines[0].tokens}
    assert isinstance(record.lines[0].told["fast"], Correlation)
    assert capsys.readouterr().out.rstrip().endswith(table(record))
    assert "| predicted | 6 |" in table(record)


def test_lengths_are_replayed_where_weights_are_random():
    """As it runs with 8B shapes on a GPU."""
    options = "--shape tiny --requests 12 --clients 6 --slots 4 --predicted 24 --shortest 8 --check 3"
    record = serving.main([*options.split(), "--arms", "predicted", "batches"])
    ours, batches = record.lines
    assert ours.tokens == batches.tokens > 12 * 10
    assert ours.columns == batches.columns
    assert (ours.checked, ours.equal) == (3, 3)
    assert ours.told["paced"].passes > 0.5
    assert "replayed" in record.notes[1]


def loaded(count, clients, slots, *, check, threads=1, **load):
    """Send requests over HTTP to a server process; `check` of the answers are compared with solo runs."""
    model = lastword.load("tiny-llada-base", device="cpu")
    asked = requests(model, count, **load)
    limits = ServerSettings(max_batch_size=slots, max_queue_size=clients)
    with served("tiny-llada-base", "predicted", limits, threads) as server:
        how = How(clients)
        return asyncio.run(over_http("predicted", server, model, asked, how, check))


def shown(line):
    return (
        f"\n{line.requests} requests: p50 {line.p50:.2f}, p95 {line.p95:.2f}, p99 {line.p99:.2f} s; first "
        f"text p50 {line.first_p50:.2f}, p95 {line.first_p95:.2f} s; {line.tokens_per_second:.0f} tokens/s; "
        f"{line.resident_200:.0f} MB, then {line.resident_end:.0f} MB"
    )


@pytest.mark.full
def test_a_small_load_over_http(capsys):
    line = loaded(12, 8, 4, check=12, mix={"fast": 1}, families=SHORT[1:2], prompts=2)
    with capsys.disabled():
        print(shown(line))
    assert (line.requests, line.equal) == (12, 12)


@pytest.mark.full
def test_sixty_four_clients_and_many_requests(capsys):
    """No answer is lost or given twice, those that are decoded alone are equal, and memory is flat."""
    mix = {"fast": 196, "careful": 3, "paper": 1}
    line = loaded(400, 64, 16, check=100, threads=2, mix=mix, families=SHORT[:2], prompts=8)
    with capsys.disabled():
        print(shown(line))
    assert (line.requests, line.checked, line.equal) == (400, 100, 100)
    assert line.resident_end <= 1.05 * line.resident_200
