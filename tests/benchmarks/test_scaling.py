"""The scaling benchmark runs, and its record says what it should."""

import json

import pytest

from benchmarks import scaling
from lastword.errors import SettingError
from lastword.models.load import load


def test_prompts_are_of_every_family_and_no_more_than_there_are():
    questions = scaling.questions_of(load("tiny-llada-base", device="cpu"), 10)
    assert len({len(question.prompt) for question in questions.values()}) > 5
    assert [question.seed for question in questions.values()] == [*range(10)]
    with pytest.raises(SettingError, match="are frozen"):
        scaling.questions_of(load("tiny-llada-base", device="cpu"), 10**6)


@pytest.mark.full
def test_two_workers_give_what_one_gives():
    found = scaling.run("tiny-llada-base", [1, 2], 12, "fast")
    rows = found["measured"]
    assert [(row["workers"], row["order"]) for row in rows] == [
        (1, "predicted"), (2, "predicted"), (2, "round robin"),
    ]  # fmt: skip
    assert len({(row["tokens"], row["passes"]) for row in rows}) == 1
    assert all(0 <= row["idle"] < 1 for row in rows)
    assert len(json.dumps(found)) < 20_000
