"""The simulated fleet: known cases by hand and by theory, nobody lost, and the record that is kept."""

import dataclasses

import numpy as np
import pytest

from benchmarks.scale import __main__ as scale
from benchmarks.scale.arms import ARMS, BEST, SLOTS, TRAFFIC, Bench
from benchmarks.scale.cost import PassCost, errors, fitted, measured
from benchmarks.scale.fleet import Site, poisson, simulate
from benchmarks.scale.limits import machines, pays, stale_run
from benchmarks.scale.natural import Work, asked, work
from benchmarks.scale.record import FILE, read
from benchmarks.scale.routing import pick_two, router
from benchmarks.scale.study import SOURCES

A_PASS = PassCost(fixed=1.0, column=0.0)  # whatever it computes


@pytest.fixture(scope="module")
def bench():
    return Bench(asked(), fitted(measured()))


def works(passes, columns=0.0, probe=0.0, predicted=None):
    passes = np.array(passes, dtype=float)
    columns, probe = (np.full(len(passes), float(own)) for own in (columns, probe))
    foreseen = passes if predicted is None else np.array(predicted, dtype=float)
    return Work(passes, columns, foreseen, columns, probe, passes, block=1.0)


def latencies(work, arrivals, cost=A_PASS, **site):
    times = np.array(arrivals, dtype=float)
    found = simulate(Site(1, **site), cost, work, times, router("random", len(work), 1))
    return found.latencies.tolist()


def test_rows_share_passes_and_wait_for_a_slot():
    assert latencies(works([3, 5]), [0, 0], slots=2) == [3, 5]  # a step is one pass of each
    assert latencies(works([3, 5]), [0, 0], slots=1) == [3, 8]
    assert latencies(works([4, 4]), [0, 1.5], slots=2) == [4, 4]


def test_columns_slow_everybody_down():
    by_column = PassCost(fixed=0.0, column=1.0)
    # A row of 4 columns in 4 passes: alone a second a pass, two of them two seconds.
    assert latencies(works([4, 4], columns=4), [0, 0], by_column, slots=2) == [8, 8]
    assert latencies(works([4, 4], columns=4), [0, 2], by_column, slots=2) == pytest.approx([6, 6])


def test_a_probe_holds_up_the_rows_of_its_replica():
    cost = PassCost(fixed=1.0, column=0.5)  # a probe of 2 columns: 2 seconds
    assert latencies(works([4, 4], probe=2), [0, 3], cost, slots=2) == [8, 6]
    assert latencies(works([4, 4], probe=2), [0, 0], cost, slots=2) == [8, 8]


def test_the_shortest_goes_first_and_who_waits_long_is_not_overtaken():
    asked_for = works([10, 8, 2])
    assert latencies(asked_for, [0, 1, 2], slots=1) == [10, 17, 18]
    assert latencies(asked_for, [0, 1, 2], slots=1, overtaking=8.0) == [10, 19, 10]
    # Somebody who came a hundred seconds later is not that much shorter.
    late = works([200, 8, 2])
    assert latencies(late, [0, 1, 101], slots=1, overtaking=8.0) == [200, 207, 109]
    wrong = works([10, 8, 2], predicted=[10, 2, 8])  # what counts is what was predicted
    assert latencies(wrong, [0, 1, 2], slots=1, overtaking=8.0) == [10, 17, 18]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_slot_and_equal_work_wait_as_theory_says(load):
    """M/D/1: the mean wait is load / (2 (1 - load)) of a service."""
    count = 60_000
    found = simulate(Site(1, 1), A_PASS, works(np.ones(count)), poisson(count, load), router("random", count, 1))
    assert found.latencies.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.06)
    assert found.busy == pytest.approx(load, rel=0.02)


def test_shared_columns_take_as_long_as_processor_sharing_says():
    """M/G/1-PS: the mean is service / (1 - load), however work is spread."""
    count, load = 60_000, 0.5
    passes = np.random.default_rng(5).choice([1.0, 19.0], count)  # mean 10
    cost = PassCost(fixed=0.0, column=1.0)
    own = dataclasses.replace(works(passes), columns=passes)
    rate, site = load / 10, Site(1, slots=1000)
    found = simulate(site, cost, own, poisson(count, rate), router("random", count, 1))
    assert found.latencies.mean() == pytest.approx(10 / (1 - load), rel=0.06)


def test_nobody_is_lost_and_the_same_seed_is_the_same_run(bench):
    traffic, rate = TRAFFIC["entropy bound"], 1.05 * 10 * bench.capacity(TRAFFIC["entropy bound"])
    for arm in ARMS.values():
        first, again = (bench.run(traffic, arm, rate, 10, 3000) for _ in range(2))
        assert len(first.latencies) == 3000
        assert (first.latencies > 0).all()  # NaN is not
        np.testing.assert_array_equal(first.latencies, again.latencies)
    other = Bench(bench.found, bench.cost, seed=1).run(traffic, arm, rate, 10, 3000)
    assert (other.latencies != first.latencies).any()


def test_a_load_takes_the_tokens_that_come(bench):
    """What goes in comes out, while replicas can do it."""
    traffic = TRAFFIC["one token a pass"]
    rate = 0.7 * 20 * bench.capacity(traffic)
    found = bench.run(traffic, ARMS[BEST], rate, 20, 20_000)
    assert found.tokens_per_second == pytest.approx(rate * found.tokens.mean(), rel=0.05)
    assert 0 < found.probing < found.busy <= 1


@pytest.mark.parametrize("name", TRAFFIC)
def test_knowing_more_is_not_worse_than_chance(bench, name):
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


def test_a_probe_pays_in_between():
    cost = PassCost(fixed=0.0, column=1.0)
    # 256 slots: 32 k saves k (256 - 32 k), at most 512; the probe costs 256 and the prompt.
    assert pays(cost, 256, prompt=0) == (64, 192)
    assert pays(cost, 256, prompt=300) is None


def test_machines_are_fewest(bench):
    traffic, arm = TRAFFIC["entropy bound"], ARMS[BEST]
    found = machines(bench, traffic, arm, 60.0, 2.5, 4000)
    assert bench.run(traffic, arm, 60.0, found, 4000).percentile(0.95) <= 2.5
    assert bench.run(traffic, arm, 60.0, found - 1, 4000).percentile(0.95) > 2.5
    assert machines(bench, traffic, arm, 60.0, 0.01, 400) is None  # no answer is so quick


def test_old_reports_are_worse_than_new_ones(bench):
    traffic = TRAFFIC["entropy bound"]
    rate = 0.9 * 20 * bench.capacity(traffic)
    new, old = (stale_run(bench, traffic, rate, 20, 20_000, every, False).percentile(0.95) for every in (0.05, 5.0))
    assert new < old


def test_the_less_loaded_of_two():
    assert [pick_two([1.0, 2.0], *pair) for pair in ((0, 1), (1, 0), (1, 1))] == [0, 0, 1]
    assert pick_two([1.0, 1.0], 1, 0) == 1


def test_requests_are_those_of_the_records(bench):
    drawn = {
        canvas: work(bench.found, TRAFFIC["one token a pass"], canvas, 5000)
        for canvas in ("fixed", "stop", "predicted")
    }
    assert len(bench.found.horizon) == 6000
    assert (drawn["fixed"].passes == 1024).all()
    np.testing.assert_array_equal(drawn["stop"].passes, drawn["predicted"].passes)
    assert (drawn["stop"].columns >= drawn["predicted"].columns).all()
    capacity = [own.capacity(bench.cost, SLOTS) for own in drawn.values()]
    assert capacity == sorted(capacity)


def test_the_record_is_of_this_code():
    """What is quick to make anew is as it is kept, and a run in miniature has the same parts."""
    kept, lines = read(), measured()
    assert len(FILE.read_bytes()) < 20_000
    cost = fitted(lines)
    assert 1e3 * cost.fixed == pytest.approx(kept.pass_ms, rel=1e-3)
    assert 1e6 * cost.column == pytest.approx(kept.column_us, rel=1e-3)
    assert errors(cost, lines) == pytest.approx(kept.errors, abs=1e-3)
    assert kept.sources == SOURCES
    assert (kept.settings["replicas"], kept.settings["requests"]) == (1000, 1_000_000)
    assert {(own.traffic, own.arm) for own in kept.lines} == {(t, a) for t in TRAFFIC for a in ARMS}


def test_the_kept_curves_regenerate(bench):
    """One point of a sweep, the same number again."""
    kept, traffic = read(), TRAFFIC["entropy bound"]
    replicas, requests = (kept.settings[f"sweep_{name}"] for name in ("replicas", "requests"))
    (curve,) = (c for c in kept.curves if (c.traffic, c.arm) == ("entropy bound", "predicted, random"))
    rate = kept.loads[0] * bench.capacity(traffic) * replicas
    found = bench.run(traffic, ARMS[curve.arm], rate, replicas, requests)
    assert found.percentile(0.95) == pytest.approx(curve.p95[0], rel=1e-3)


@pytest.mark.full
def test_a_small_run_makes_a_record(tmp_path, capsys):
    command = f"--requests 4000 --replicas 10 --out {tmp_path}/small.json"
    record = scale.main(command.split())
    assert read(tmp_path / "small.json").traffic.keys() == record.traffic.keys()
    assert "| canvas 1024 |" in capsys.readouterr().out


def test_a_picture_is_drawn_of_it(tmp_path):
    from benchmarks.scale.picture import draw

    draw(read(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_sizes_are_checked(capsys):
    with pytest.raises(SystemExit):
        scale.main(["--requests", "5", "--replicas", "1"])
    assert "at least 2 replicas" in capsys.readouterr().err
