"""The seconds of an answer, on a clock that advances by one for each forward pass."""

from types import SimpleNamespace

import pytest

import lastword
from lastword.api import generate_ids
from lastword.decoding.loop import decode, make_requests
from lastword.decoding.sampling import Sampling
from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.models.toy import Toy
from lastword.recipe.recipe import Recipe
from tests.engines.replies import Spelling

FIVE = Recipe(length=lastword.Fixed(5))


@pytest.fixture
def clock(monkeypatch):
    """The seconds on the clock of the decode loop."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr("lastword.decoding.loop.time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


@pytest.fixture
def model(clock):
    """A toy whose forward passes take a second each."""

    class Ticking(Toy):
        def __call__(self, tokens, read, **more):
            clock.seconds += 1
            return super().__call__(tokens, read, **more)

    return Ticking()


def times(answers):
    return [(answer.seconds, answer.seconds_share) for answer in answers]


def test_one_answer_after_the_other_has_its_own_seconds(model, clock):
    answers = lastword.generate(model, ["abc"] * 3, recipe=FIVE, max_new_tokens=[2, None, 3], max_batch_size=1)
    assert times(answers) == [(2, 2), (5, 5), (3, 3)]
    assert clock.seconds == 10


def test_answers_of_a_batch_divide_each_step_among_its_rows(model, clock):
    answers = lastword.generate(model, ["abc"] * 3, recipe=FIVE, max_new_tokens=[2, None, 3])
    shares = [2 / 3, 2 / 3 + 1 / 2 + 2, 2 / 3 + 1 / 2]
    assert [answer.seconds for answer in answers] == [2, 5, 3]
    assert [answer.seconds_share for answer in answers] == pytest.approx(shares)
    assert sum(shares) == pytest.approx(clock.seconds)


def test_an_answer_that_waited_counts_only_its_own_steps(model, clock):
    answers = lastword.generate(model, ["abc"] * 3, recipe=FIVE, max_batch_size=2)
    assert times(answers) == [(5, 2.5), (5, 2.5), (5, 5)]
    assert clock.seconds == 10


def test_the_probe_counts(model):
    (answer,) = lastword.generate(model, ["abc"], length="survival:16")
    assert answer.seconds == answer.cost.forward_passes + 1
    assert answer.probe_cost.forward_passes == 1


def test_a_stopped_answer_counts_until_it_stops(model):
    answers = lastword.generate(model, ["abc"] * 2, recipe=FIVE.with_choices(block=1), stop=[["f"], []])
    assert [answer.seconds for answer in answers] == [3, 5]


def test_what_a_caller_does_between_two_steps_does_not_count(model, clock):
    def slow(step):
        clock.seconds += 100

    (answer,) = lastword.generate(model, ["abc"], recipe=FIVE, on_step=slow)
    assert times([answer]) == [(5, 5)]
    finished = []
    for step in decode(model, [[0, 1, 2]], FIVE):
        clock.seconds += 100
        finished += step.finished
    assert times(finished) == [(5, 5)]


def test_each_answer_is_yielded_when_it_is_finished(model, clock):
    requests = make_requests("generate", model, [[0, 1, 2]] * 3, max_new_tokens=[4, 2, None])
    finished = generate_ids(model, requests, FIVE)
    assert [(index, answer.seconds, clock.seconds) for index, answer in finished] == [(1, 2, 2), (0, 4, 4), (2, 5, 5)]


# Engines and records


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_shares_of_all_replies_add_up_to_the_time(model, clock, rows):
    requests = {number: GenerationRequest([number, 1, 2], number, max_new_tokens=1 + number % 3) for number in range(9)}
    replies = list(LocalEngine(model).generate(requests, FIVE, max_batch_size=rows))
    details = [reply.details for (reply,) in replies]
    assert len(details) == 9
    assert sum(one["seconds_share"] for one in details) == pytest.approx(clock.seconds, abs=1e-4)
    assert {one["rows"] for one in details} == {rows}
    if rows == 1:
        assert all(one["seconds"] == one["seconds_share"] == one["length"] for one in details)


def test_a_record_has_the_seconds_of_its_answer(model, clock, tmp_path):
    recipe = FIVE.with_choices(sampling=Sampling(temperature=1.0))  # some answers end earlier than others
    task = Spelling(count=6)
    records = evaluate(model, "toy", [task], recipe, Journal(tmp_path / "a.jsonl"), max_batch_size=2)
    assert sum(record.share_of_time for record in records) == pytest.approx(clock.seconds, abs=1e-4)
    assert all(0 < record.seconds_share <= record.seconds for record in records)
    untimed = evaluate(model, "toy", [task], recipe, Journal(tmp_path / "b.jsonl"), timed=False)
    assert {record.share_of_time for record in untimed} == {None}
