"""Tests of the coverage of calibrated bounds: whole slots, truncated answers, random halves, and tables."""

import math
import random
import statistics

import pytest

from benchmarks import coverage
from lastword.tasks import load_frozen


def test_fresh_prompts_are_neither_frozen_nor_used_in_development(monkeypatch):
    monkeypatch.setattr(coverage, "DEVELOPMENT", (coverage.SEED, 10))  # excludes the first ten prompts of the seed
    prompts = coverage.fresh("algebra", 20)
    assert [e.prompt for e in prompts] == [e.prompt for e in coverage.fresh("algebra", 20)]
    assert not {e.prompt for e in prompts} & {e.prompt for e in load_frozen("test", "algebra")}
    monkeypatch.setattr(coverage, "DEVELOPMENT", (coverage.SEED, 0))
    assert prompts == coverage.fresh("algebra", 30)[10:]


def test_a_truncated_answer_is_not_covered():
    bounds = coverage.Bounds([5, 6], [5, None], {0.9: [8, 8], 0.95: [9, 8]})
    pairs = coverage.pairs_of(bounds, "own", 0.9)
    assert pairs == [(8, 5), (8, math.inf)]
    assert coverage.covered(pairs, 1.0) == 0.5


def test_a_bound_is_rounded_up():
    assert coverage.covered([(10, 11)], 1.01) == 1
    assert coverage.covered([(10, 11)], 1.0) == 0


def test_halves_are_random_and_complete():
    pairs = [(index, index + 1) for index in range(100)]
    calibration, test = coverage.halves(pairs)
    assert sorted([*calibration, *test]) == pairs
    assert calibration != pairs[:50]
    assert coverage.halves(pairs) == (calibration, test)


def test_the_mean_coverage_of_many_halves_is_the_wanted_coverage():
    chance = random.Random(0)
    pairs = [(50, round(chance.uniform(20, 80))) for _ in range(400)]
    shares = coverage.draws(pairs, 0.9)
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.02)


@pytest.fixture
def families():
    """Predicted bounds and random lengths of 400 prompts per family; one answer per family is truncated."""
    chance = random.Random(0)

    def bounds():
        written = [round(chance.uniform(20, 80)) for _ in range(400)]
        return coverage.Bounds([40] * 400, [*written[1:], None], {0.9: [50] * 400, 0.95: [60] * 400})

    return {name: bounds() for name in coverage.BENCHMARKS}


def test_the_summary_contains_the_coverage_of_every_bound(families):
    summary = coverage.summarise(families)
    assert summary["prompts"] == dict.fromkeys(coverage.BENCHMARKS, 400)
    bounds = summary["covered"][0]["bounds"]
    for name, of_family in families.items():
        calibration, test = coverage.halves(coverage.pairs_of(of_family, "own", 0.9))
        assert bounds["as read"]["families"][name] == coverage.covered(test, 1.0)
        assert bounds["a factor each"]["families"][name] == coverage.covered(test, coverage.factor(calibration, 0.9))


def test_the_tables_show_the_summary(families):
    summary = coverage.summarise(families)
    assert coverage.table({"m": summary}, "own").count("\n| m | ") == 2 * 3
    assert "| m | 90%, calibration: none | 1.25 | 100.0% |" in coverage.table({"m": summary}, "reference")
    assert coverage.chance({"m": summary}).count("±") == 2 * len(coverage.BENCHMARKS)


def test_the_page_table_has_a_row_per_model_and_calibration(families):
    summary = coverage.summarise(families)
    _, _, *rows = coverage.summary_table({"m": summary}, "own").splitlines()
    expected = []
    for key, title in (("as read", "none"), ("one factor", "one factor"), ("a factor each", "factor per family")):
        cells = ["m", title]
        for row in (row for row in summary["covered"] if row["truth"] == "own"):
            bound = row["bounds"][key]
            shares = [100 * share for share in bound["families"].values()]
            cells.append(f"{bound['slots']:.2f}")
            cells.append(f"{statistics.mean(shares):.1f}% ({min(shares):.1f}% to {max(shares):.1f}%)")
        expected.append(f"| {' | '.join(cells)} |")
    assert rows == expected
    assert coverage.page_table() == coverage.summary_table(coverage.read(), "own")
