"""Tests of the simulated fleet: small cases by hand and by queueing theory, limits, and the kept record."""

import dataclasses

import numpy as np
import pytest

from benchmarks.scale import __main__ as scale, table as tables
from benchmarks.scale.arms import ARMS, BEST, SLOTS, TRAFFIC, Bench
from benchmarks.scale.cost import PassCost, errors, fitted, measured
from benchmarks.scale.fleet import Site, poisson, simulate
from benchmarks.scale.limits import replicas_for, stale_run, useful_probe
from benchmarks.scale.natural import Work, draw_work, load_prompts
from benchmarks.scale.picture import draw
from benchmarks.scale.record import FILE, read
from benchmarks.scale.routing import pick_two, router
from benchmarks.scale.study import SOURCES, TARGETS

ONE_SECOND = PassCost(fixed=1.0, token=0.0)  # per forward pass


@pytest.fixture(scope="module")
def bench():
    return Bench(load_prompts(), fitted(measured()))


def work_of(passes, tokens=0.0, probe=0.0, predicted=None):
    """Return requests with these forward passes, computed tokens, tokens of the probe and predicted passes."""
    passes = np.array(passes, dtype=float)
    tokens, probe = (np.full(len(passes), float(count)) for count in (tokens, probe))
    predicted_passes = passes if predicted is None else np.array(predicted, dtype=float)
    return Work(passes, tokens, predicted_passes, tokens, probe, passes, block=1.0)


def latencies(work, arrivals, cost=ONE_SECOND, **site):
    """Return the latencies on one replica."""
    times = np.array(arrivals, dtype=float)
    return simulate(Site(1, **site), cost, work, times, router("random", len(work), 1)).latencies.tolist()


def test_rows_share_passes_and_requests_wait_for_a_free_row():
    assert latencies(work_of([3, 5]), [0, 0], slots=2) == [3, 5]  # a step is a forward pass of each row
    assert latencies(work_of([3, 5]), [0, 0], slots=1) == [3, 8]
    assert latencies(work_of([4, 4]), [0, 1.5], slots=2) == [4, 4]


def test_tokens_of_a_row_slow_all_rows():
    by_tokens = PassCost(fixed=0.0, token=1.0)
    # A row with 4 tokens in 4 passes: one row takes a second per pass, two rows take two seconds.
    assert latencies(work_of([4, 4], tokens=4), [0, 0], by_tokens, slots=2) == [8, 8]
    assert latencies(work_of([4, 4], tokens=4), [0, 2], by_tokens, slots=2) == pytest.approx([6, 6])


def test_a_probe_delays_the_rows_of_its_replica():
    cost = PassCost(fixed=1.0, token=0.5)  # a probe of 2 tokens takes 2 seconds
    assert latencies(work_of([4, 4], probe=2), [0, 3], cost, slots=2) == [8, 6]
    assert latencies(work_of([4, 4], probe=2), [0, 0], cost, slots=2) == [8, 8]


def test_short_requests_go_first_unless_others_have_waited_long():
    work = work_of([10, 8, 2])
    assert latencies(work, [0, 1, 2], slots=1) == [10, 17, 18]
    assert latencies(work, [0, 1, 2], slots=1, overtaking=8.0) == [10, 19, 10]
    # The third request arrives 100 seconds after the second, which has waited too long to be overtaken.
    assert latencies(work_of([200, 8, 2]), [0, 1, 101], slots=1, overtaking=8.0) == [200, 207, 109]
    # The order depends on the prediction, also if it is wrong.
    wrong = work_of([10, 8, 2], predicted=[10, 2, 8])
    assert latencies(wrong, [0, 1, 2], slots=1, overtaking=8.0) == [10, 17, 18]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_row_with_equal_work_waits_as_in_an_m_d_1_queue(load):
    """The mean wait is load / (2 (1 - load)) service times."""
    count = 60_000
    work, arrivals = work_of(np.ones(count)), poisson(count, load)
    outcome = simulate(Site(1, 1), ONE_SECOND, work, arrivals, router("random", count, 1))
    assert outcome.latencies.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.06)
    assert outcome.busy == pytest.approx(load, rel=0.02)


def test_rows_that_share_tokens_take_as_long_as_with_processor_sharing():
    """M/G/1-PS: the mean latency is service / (1 - load) for every distribution of work."""
    count, load = 60_000, 0.5
    passes = np.random.default_rng(5).choice([1.0, 19.0], count)  # mean 10
    cost = PassCost(fixed=0.0, token=1.0)
    work = dataclasses.replace(work_of(passes), tokens_computed=passes)
    arrivals, site = poisson(count, load / 10), Site(1, slots=1000)
    outcome = simulate(site, cost, work, arrivals, router("random", count, 1))
    assert outcome.latencies.mean() == pytest.approx(10 / (1 - load), rel=0.06)


def test_every_request_is_answered_and_equal_seeds_give_equal_runs(bench):
    traffic, rate = TRAFFIC["entropy bound"], 1.05 * 10 * bench.capacity(TRAFFIC["entropy bound"])
    for arm in ARMS.values():
        first, second = (bench.run(traffic, arm, rate, 10, 3000) for _ in range(2))
        assert len(first.latencies) == 3000
        assert (first.latencies > 0).all()  # an unanswered request has NaN
        np.testing.assert_array_equal(first.latencies, second.latencies)
        other = Bench(bench.prompts, bench.cost, seed=1).run(traffic, arm, rate, 10, 3000)
        assert (other.latencies != first.latencies).any()


def test_the_output_rate_equals_the_input_rate_below_the_capacity(bench):
    traffic = TRAFFIC["one token per pass"]
    rate = 0.7 * 20 * bench.capacity(traffic)
    outcome = bench.run(traffic, ARMS[BEST], rate, 20, 20_000)
    assert outcome.tokens_per_second == pytest.approx(rate * outcome.tokens.mean(), rel=0.05)
    assert 0 < outcome.probing < outcome.busy <= 1


@pytest.mark.parametrize("name", TRAFFIC)
def test_routing_by_work_is_better_than_random_routing(bench, name):
    traffic = TRAFFIC[name]
    rate = 0.9 * 20 * bench.capacity(traffic)
    p95 = {
        arm.route: bench.run(traffic, arm, rate, 20, 20_000).percentile(0.95)
        for arm in ARMS.values()
        if arm.canvas == "predicted" and not arm.ordered
    }
    assert p95["true"] < 0.9 * p95["random"]
    assert p95["predicted"] < 0.9 * p95["random"]
    assert p95["true"] < 1.1 * p95["requests"]


def test_a_probe_saves_time_for_answers_of_medium_length():
    cost = PassCost(fixed=0.0, token=1.0)
    # Of 256 slots, an answer of k blocks of 32 saves k (256 - 32 k) tokens, at most 512; the probe costs 256 and the
    # prompt.
    assert useful_probe(cost, 256, prompt=0) == (64, 192)
    assert useful_probe(cost, 256, prompt=300) is None


def test_the_number_of_replicas_is_the_smallest_that_meets_the_target(bench):
    traffic, arm = TRAFFIC["entropy bound"], ARMS[BEST]
    replicas = replicas_for(bench, traffic, arm, 60.0, 2.5, 4000)
    assert bench.run(traffic, arm, 60.0, replicas, 4000).percentile(0.95) <= 2.5
    assert bench.run(traffic, arm, 60.0, replicas - 1, 4000).percentile(0.95) > 2.5
    assert replicas_for(bench, traffic, arm, 60.0, 0.01, 400) is None  # no answer is so fast


def test_old_reports_are_worse_than_new_ones(bench):
    traffic = TRAFFIC["entropy bound"]
    rate = 0.9 * 20 * bench.capacity(traffic)
    new, old = (stale_run(bench, traffic, rate, 20, 20_000, every, False).percentile(0.95) for every in (0.05, 5.0))
    assert new < old


def test_the_less_loaded_of_two_replicas_is_picked():
    assert [pick_two([1.0, 2.0], *pair) for pair in ((0, 1), (1, 0), (1, 1))] == [0, 0, 1]
    assert pick_two([1.0, 1.0], 1, 0) == 1


def test_drawn_requests_have_the_work_of_their_canvas(bench):
    drawn = {
        canvas: draw_work(bench.prompts, TRAFFIC["one token per pass"], canvas, 5000)
        for canvas in ("fixed", "stop", "predicted")
    }
    assert len(bench.prompts.horizon) == 6000
    assert (drawn["fixed"].passes == 1024).all()
    np.testing.assert_array_equal(drawn["stop"].passes, drawn["predicted"].passes)
    assert (drawn["stop"].tokens_computed >= drawn["predicted"].tokens_computed).all()
    capacity = [work.capacity(bench.cost, SLOTS) for work in drawn.values()]
    assert capacity == sorted(capacity)


# The kept record


def test_the_record_is_of_the_present_code_and_inputs():
    record, lines = read(), measured()
    assert len(FILE.read_bytes()) < 20_000
    cost = fitted(lines)
    assert 1e3 * cost.fixed == pytest.approx(record.pass_ms, rel=1e-3)
    assert 1e6 * cost.token == pytest.approx(record.token_us, rel=1e-3)
    assert errors(cost, lines) == pytest.approx(record.errors, abs=1e-3)
    assert record.sources == SOURCES
    assert (record.settings["replicas"], record.settings["requests"]) == (1000, 1_000_000)
    assert {(line.traffic, line.arm) for line in record.lines} == {(t, a) for t in TRAFFIC for a in ARMS}


def test_a_point_of_the_kept_curves_is_simulated_again(bench):
    record, traffic = read(), TRAFFIC["entropy bound"]
    replicas, requests = (record.settings[f"sweep_{name}"] for name in ("replicas", "requests"))
    (curve,) = (c for c in record.curves if (c.traffic, c.arm) == ("entropy bound", "predicted, random"))
    rate = record.loads[0] * bench.capacity(traffic) * replicas
    outcome = bench.run(traffic, ARMS[curve.arm], rate, replicas, requests)
    assert outcome.percentile(0.95) == pytest.approx(curve.p95[0], rel=1e-3)


def test_the_page_table_shows_the_p95_and_the_replicas_of_every_arm():
    record = read()
    head, _, *rows, _, caption = tables.page_table().splitlines()
    titles = [part for name in TRAFFIC for part in (f"{name}: p95, s", f"replicas for {TARGETS[name]:g} s")]
    assert head == f"| arm | {' | '.join(titles)} |"
    lines = {(line.traffic, line.arm): line for line in record.lines}
    expected = []
    for arm in ARMS:
        cells = []
        for name in TRAFFIC:
            line, base = lines[name, arm], lines[name, "predicted, least requests"].replicas
            cells.append("grows" if line.p95 is None else f"{line.p95:.2f}")
            cells.append(f"{line.replicas:,} ({line.replicas / base:.2f}x)" if line.replicas else "none")
        expected.append(f"| {arm} | {' | '.join(cells)} |")
    assert rows == expected
    assert "Rates: 90% of the capacity of 1,000 replicas" in caption
    for summary in record.traffic.values():
        assert f"{summary.rate:,.0f}" in caption
        assert f"{summary.r2:.2f}" in caption


def test_the_table_of_limits_shows_the_increase_by_stale_reports():
    record = read()
    text = tables.page_limits()
    for every in tables.PAGE_REPORTS:
        cells = []
        for name in TRAFFIC:
            (stale,) = (item for item in record.stale if (item.traffic, item.every) == (name, every))
            (curve,) = (item for item in record.curves if (item.traffic, item.arm) == (name, BEST))
            fresh = curve.p95[record.loads.index(0.9)]
            cells.append(f"{stale.alone / fresh - 1:+.0%} / {stale.counting / fresh - 1:+.0%}")
        assert f"| p95 with reports every {every:g} s: reports only / and sent requests | {' | '.join(cells)} |" in text
    assert text.count("with reports every") == len(tables.PAGE_REPORTS)
    for slots, lengths in record.useful_probe.items():
        assert f"{slots}: {f'{lengths[0]} to {lengths[1]} tokens' if lengths else 'never'}" in text


@pytest.mark.full
def test_a_small_run_writes_a_record(tmp_path, capsys):
    command = f"--requests 4000 --replicas 10 --out {tmp_path}/small.json"
    record = scale.main(command.split())
    assert read(tmp_path / "small.json").traffic.keys() == record.traffic.keys()
    assert "| canvas 1024 |" in capsys.readouterr().out


def test_the_figure_is_drawn_from_the_record(tmp_path):
    draw(read(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_replicas_and_requests_are_rejected(capsys):
    with pytest.raises(SystemExit):
        scale.main(["--requests", "5", "--replicas", "1"])
    assert "at least 2 replicas" in capsys.readouterr().err
