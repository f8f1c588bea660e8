"""Tests of the errors of lengths that are predicted after the first tokens of an answer."""

import pytest

from benchmarks import partial_answers
from benchmarks.interpretations import read_floor
from lastword.tasks import BENCHMARKS

LONG = {"length": 50, "product": {"0": 30.0, "8": 40.0}, "auto": {"0": 45.0, "8": 48.0}}
SHORT = {"length": 5, "product": {"0": 9.0}, "auto": {"0": 4.0}}


def test_errors_leave_out_answers_that_are_too_short():
    records = [LONG, SHORT]
    assert partial_answers.error(records, "product", 0) == 12
    assert partial_answers.longer_than(records, 8) == [LONG]
    assert partial_answers.error(partial_answers.longer_than(records, 8), "auto", 8) == 2


def test_the_table_shows_the_error_of_auto_and_of_the_product(monkeypatch):
    monkeypatch.setattr(partial_answers, "TOKENS", (0, 8))
    assert partial_answers.table({"m": [LONG, SHORT]}).splitlines() == [
        "| model | 0 tokens written | 8 tokens written |",
        "|---|---:|---:|",
        "| m | 3.0 (12.0) | 2.0 (10.0) |",
    ]


def test_a_run_predicts_lengths_with_and_without_first_tokens(tmp_path):
    partial_answers.run("tiny-llada-base", 1, 5, tmp_path)
    (records,) = partial_answers.read(tmp_path).values()
    assert [record["family"] for record in records] == list(BENCHMARKS)
    for record in records:
        assert record["auto"]["0"] != record["auto"]["8"]
        assert all(int(tokens) < mean <= partial_answers.LIMIT for tokens, mean in record["auto"].items())
    assert partial_answers.error(records, "auto", 8) < partial_answers.error(records, "product", 0)


@pytest.mark.parametrize("model", partial_answers.MODELS[2:])
@pytest.mark.parametrize("interpretation", ["product", "auto"])
def test_after_eight_tokens_the_error_of_instruct_models_is_below_the_spread_of_writers(model, interpretation):
    """No prediction from the prompt alone can be better than the spread among writers of the same prompt."""
    records = partial_answers.longer_than(partial_answers.read()[model], 8)
    floors = read_floor()
    floor = sum(floors[family]["deviation"] for family in BENCHMARKS) / len(BENCHMARKS)
    assert len(records) >= 900
    before, after = (partial_answers.error(records, interpretation, tokens) for tokens in (0, 8))
    assert after < 0.75 * floor < floor < before
