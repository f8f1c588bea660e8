"""Coverage is counted as it is promised: whole slots, cut answers, random halves."""

import math
import random

import pytest

from benchmarks import coverage
from lastword.tasks import load_frozen


def test_fresh_prompts_are_neither_frozen_nor_those_the_method_was_settled_on(monkeypatch):
    monkeypatch.setattr(coverage, "SETTLED", (coverage.SEED, 10))  # the next ones, then
    made = coverage.fresh("algebra", 20)
    assert [e.prompt for e in made] == [e.prompt for e in coverage.fresh("algebra", 20)]
    assert not {e.prompt for e in made} & {e.prompt for e in load_frozen("test", "algebra")}
    monkeypatch.setattr(coverage, "SETTLED", (coverage.SEED, 0))
    everything = coverage.fresh("algebra", 30)
    assert made == everything[10:]


def test_an_answer_that_was_cut_is_not_covered():
    record = coverage.Bounds([5, 6], [5, None], {0.9: [8, 8], 0.95: [9, 8]})
    pairs = coverage.pairs_of(record, "own", 0.9)
    assert pairs == [(8, 5), (8, math.inf)]
    assert coverage.covered(pairs, 1.0) == 0.5


def test_a_bound_is_rounded_up():
    assert coverage.covered([(10, 11)], 1.01) == 1
    assert coverage.covered([(10, 11)], 1.0) == 0


def test_halves_are_random_and_whole():
    pairs = [(index, index + 1) for index in range(100)]
    known, new = coverage.halves(pairs)
    assert sorted([*known, *new]) == pairs
    assert known != pairs[:50]
    assert coverage.halves(pairs) == (known, new)


def test_coverage_over_many_halvings_is_what_was_asked_for():
    chance = random.Random(0)
    pairs = [(50, round(chance.uniform(20, 80))) for _ in range(400)]
    shares = coverage.draws(pairs, 0.9)
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.02)


def test_the_tables_show_what_was_measured():
    chance = random.Random(0)

    def family():
        own = [round(chance.uniform(20, 80)) for _ in range(400)]
        return coverage.Bounds([40] * 400, [*own[1:], None], {0.9: [50] * 400, 0.95: [60] * 400})

    families = {name: family() for name in coverage.BENCHMARKS}
    summary = coverage.summarise(families)
    assert summary["prompts"] == dict.fromkeys(coverage.BENCHMARKS, 400)
    row = summary["covered"][0]["bounds"]["a factor each"]
    for name, bounds in families.items():
        known, new = coverage.halves(coverage.pairs_of(bounds, "own", 0.9))
        assert row["families"][name] == coverage.covered(new, coverage.factor(known, 0.9))
    assert coverage.table({"m": summary}, "own").count("\n| m | ") == 2 * 3
    assert "| m | 90% as read | 1.25 | 100.0% |" in coverage.table({"m": summary}, "reference")
    assert coverage.chance({"m": summary}).count("±") == 2 * len(coverage.BENCHMARKS)
