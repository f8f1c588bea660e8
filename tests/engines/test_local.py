"""The local engine: a request that fails fails alone, answers are bounded, and lengths are predicted."""

import pytest

import lastword
from lastword.engines import Engine, GenerationRequest, LocalEngine
from lastword.engines.local import MAX_ATTEMPTS
from lastword.errors import SettingError
from lastword.models.toy import Toy
from lastword.recipe.resolve import resolve
from tests.engines.replies import POISON, Poisoned, generate

FIVE = lastword.Recipe(length=lastword.Fixed(5))


def requests_for(*first_ids):
    return {at: GenerationRequest([first, 1, 2], seed=at) for at, first in enumerate(first_ids)}


def test_it_is_an_engine(toy):
    assert isinstance(LocalEngine(toy), Engine)


@pytest.mark.parametrize("bad", [0, 3, 6])
def test_only_the_request_at_fault_fails(toy, bad):
    model, requests = Poisoned(), requests_for(*[POISON if at == bad else at for at in range(7)])
    replies = generate(LocalEngine(model), requests, FIVE, 4)
    text, details, reason = replies.pop(bad)
    assert (text, details["finish"]) == ("", "failed")
    assert "NaN" in reason or "finite" in reason, reason
    assert f"tried {MAX_ATTEMPTS} times alone" in reason
    expected = generate(LocalEngine(toy), requests, FIVE, 4)
    assert {key: reply[0] for key, reply in replies.items()} == {key: expected[key][0] for key in replies}
    assert not any(reply[2] for reply in replies.values())
    assert model.batch_sizes.count(1) < 7 * 5  # halves, not one by one


def test_each_answer_is_yielded_before_the_next_is_decoded(toy):
    engine, steps = LocalEngine(toy), []
    engine.on_step = steps.append
    replies = engine.generate(requests_for(1, 2, 3), FIVE, max_batch_size=1)
    for answered in range(3):
        (reply,) = next(replies)
        assert (reply.key, len(steps)) == (answered, 5 * (answered + 1))
    assert next(replies, None) is None


def test_answers_before_a_failure_are_yielded_and_not_decoded_again():
    model = Poisoned()
    requests = requests_for(1, 2, POISON, 4)
    replies = LocalEngine(model).generate(requests, FIVE, max_batch_size=1)
    assert [next(replies)[0].key for _ in range(2)] == [0, 1]
    before = len(model.batch_sizes)
    assert before == 2 * 5
    (failed,), (last,) = replies
    assert (failed.key, failed.details["finish"], last.key, last.error) == (2, "failed", 3, None)
    assert len(model.batch_sizes) == before + (1 + MAX_ATTEMPTS) + 5  # in the batch, then alone; then the last answer


def test_the_rows_of_a_reply_are_those_decoded_at_once(toy):
    for count, expected in ((2, 2), (5, 3)):
        replies = generate(LocalEngine(toy), requests_for(*range(count)), FIVE, 3, without=())
        assert {details["rows"] for _, details, _ in replies.values()} == {expected}


def test_a_stop_string_ends_the_answer_of_its_request_only(toy):
    requests = {
        name: GenerationRequest([0, 1, 2], 0, stop=stop)
        for name, stop in {"plain": (), "stopped": ("zz", "f"), "unmet": ("zz",)}.items()
    }
    replies = generate(LocalEngine(toy), requests, lastword.Recipe(length=lastword.Fixed(5), block=1), 3)
    assert {name: reply[0] for name, reply in replies.items()} == {"plain": "defgh", "stopped": "de", "unmet": "defgh"}
    assert (replies["stopped"][1]["finish"], replies["stopped"][1]["stop_reason"]) == ("stopped", "f")
    passes = {name: reply[1]["cost"].forward_passes for name, reply in replies.items()}
    assert passes == {"plain": 5, "stopped": 3, "unmet": 5}


def test_an_error_that_all_requests_share_is_raised(toy):
    recipe = lastword.Recipe(length=lastword.Calibrated(0.9))
    with pytest.raises(SettingError):
        generate(LocalEngine(toy), requests_for(1, 2), recipe)


def test_each_request_has_its_own_bound(toy):
    bounds = {"all": None, "two": 2, "ample": 50}
    requests = {name: GenerationRequest([0, 1, 2], 0, max_new_tokens=bound) for name, bound in bounds.items()}
    replies = generate(LocalEngine(toy), requests, FIVE)
    assert {name: len(reply[0]) for name, reply in replies.items()} == {"all": 5, "two": 2, "ample": 5}


def test_predicted_lengths_are_the_planned_ones():
    model = Toy()
    model.max_seq_len = 200
    requests = {"free": GenerationRequest([0, 1], 0), "capped": GenerationRequest([2], 0, max_new_tokens=9)}
    requests["too long"] = GenerationRequest([5] * 180, 0)
    recipe = resolve(lastword.Recipe(length=lastword.Survival()), model)
    predicted = {}
    for lengths in LocalEngine(model).predict_lengths(requests, recipe, max_batch_size=2):
        predicted |= lengths
    replies = generate(LocalEngine(model), requests, recipe)
    assert replies.pop("too long")[1]["finish"] == "too_long"
    assert predicted == {key: reply[1]["horizon"] for key, reply in replies.items()}
    assert predicted["capped"] == 9 < predicted["free"]


def test_requests_that_cannot_be_planned_have_no_predicted_length():
    recipe = resolve(lastword.Recipe(length=lastword.Survival(8)), Poisoned())
    requests = requests_for(1, 2, POISON, 3)
    lengths = list(LocalEngine(Poisoned()).predict_lengths(requests, recipe, max_batch_size=2))
    assert [set(batch) for batch in lengths if batch] == [{0, 1}]
