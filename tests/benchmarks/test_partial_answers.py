"""Lengths read behind the first tokens of an answer."""

import json

import pytest
from benchmarks.readings import FLOOR

from benchmarks import begun
from lastword.tasks import BENCHMARKS

LENGTHS = {"length": 50, "product": {"0": 30.0, "8": 40.0}, "auto": {"0": 45.0, "8": 48.0}}


def test_errors_are_those_of_answers_that_were_not_over():
    over = {"length": 5, "product": {"0": 9.0}, "auto": {"0": 4.0}}
    records = [LENGTHS, over]
    assert begun.error(records, "product", 0) == 12
    assert begun.longer_than(records, 8) == [LENGTHS]
    assert begun.error(begun.longer_than(records, 8), "auto", 8) == 2


def test_a_run_reads_with_none_and_with_some_of_the_answer(tmp_path):
    begun.run("tiny-llada-base", 1, 5, tmp_path)
    (records,) = begun.read(tmp_path).values()
    assert [record["family"] for record in records] == list(BENCHMARKS)
    for record in records:
        assert record["auto"]["0"] != record["auto"]["8"]
        assert all(int(tokens) < mean <= begun.LIMIT for tokens, mean in record["auto"].items())
    assert begun.error(records, "auto", 8) < begun.error(records, "product", 0)


@pytest.mark.parametrize("model", begun.MODELS[2:])
@pytest.mark.parametrize("reading", ["product", "auto"])
def test_eight_tokens_say_what_no_prompt_of_an_instruct_model_could(model, reading):
    """Less than the spread among writers of the same prompt, whichever way it is read."""
    mine = begun.longer_than(begun.read()[model], 8)
    floors = json.loads(FLOOR.read_text())["families"]
    floor = sum(floors[family]["deviation"] for family in BENCHMARKS) / len(BENCHMARKS)
    assert len(mine) >= 900
    assert begun.error(mine, reading, 8) < 0.75 * floor < floor < begun.error(mine, reading, 0)
