"""The engine of this process: a question that fails fails alone, a bound is kept, lengths are predicted."""

import pytest
import torch

import lastword
from lastword.engines.base import Engine, GenerationRequest, LengthPredictor
from lastword.engines.local import MAX_ATTEMPTS, LocalEngine
from lastword.errors import SettingError
from lastword.models.toy import Toy
from lastword.recipe.resolve import resolve

FIVE = lastword.Recipe(length=lastword.Fixed(5))
POISON = 25  # the id of "z"


class Poisoned(Toy):
    """NaN for a whole batch as soon as one of its prompts holds the poison."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def __call__(self, tokens, read, **more):
        self.batches.append(len(tokens))
        logits = super().__call__(tokens, read, **more)
        first = tokens[:, 0] == POISON
        return torch.full_like(logits, torch.nan) if bool(first.any()) else logits


def asked(*firsts, most=None):
    return {
        at: GenerationRequest([first, 1, 2], seed=at, max_new_tokens=most) for at, first in enumerate(firsts)
    }


def replies(model, questions, recipe=FIVE, rows=4):
    batches = LocalEngine(model).generate(questions, resolve(recipe, model), max_batch_size=rows)
    found = [reply for batch in batches for reply in batch]
    assert sorted(reply.key for reply in found) == sorted(questions)  # each once
    return {reply.key: reply for reply in found}


def test_it_is_an_engine_that_foresees():
    assert isinstance(LocalEngine(lastword.load("toy")), Engine)
    assert isinstance(LocalEngine(lastword.load("toy")), LengthPredictor)


@pytest.mark.parametrize("where", [0, 3, 6])
def test_only_the_culprit_fails(where):
    firsts = [POISON if at == where else at for at in range(7)]
    model = Poisoned()
    found = replies(model, asked(*firsts))
    assert [key for key, reply in found.items() if reply.error] == [where]
    reason = found[where].error
    assert "NaN" in reason or "finite" in reason, reason
    assert f"tried {MAX_ATTEMPTS} times alone" in reason
    assert found[where].details["finish"] == "failed"
    alone = replies(lastword.load("toy"), asked(*firsts))
    for key in set(found) - {where}:
        assert found[key].text == alone[key].text
    assert model.batches.count(1) < 7 * 5  # halves, not one by one


def test_what_is_wrong_with_every_question_is_raised(toy):
    recipe = lastword.Recipe(length=lastword.Calibrated(0.9))
    with pytest.raises(SettingError):
        list(LocalEngine(toy).generate(asked(1, 2), recipe, max_batch_size=2))


def test_a_bound_is_each_questions_own(toy):
    questions = {
        "all": GenerationRequest([0, 1, 2], 0),
        "two": GenerationRequest([0, 1, 2], 0, max_new_tokens=2),
        "ample": GenerationRequest([0, 1, 2], 0, max_new_tokens=50),
    }
    found = replies(toy, questions)
    assert {key: len(reply.text) for key, reply in found.items()} == {
        "all": 5, "two": 2, "ample": 5,
    }  # fmt: skip


def test_lengths_are_predicted_as_they_are_planned_then():
    model = lastword.load("tiny-llada-base")
    prompts = ["Problem: Solve for n: 4n + 3 = 35.", "Problem: what is 2 + 2? Be brief."]
    questions = {
        text: GenerationRequest(model.tokenizer.encode(text), 0, most)
        for text, most in zip(prompts, (None, 9))
    }
    questions["too long"] = GenerationRequest([5] * 1000, 0)
    recipe = resolve(lastword.Recipe.named("fast"), model)
    predicted = {}
    for some in LocalEngine(model).predict_lengths(questions, recipe, max_batch_size=2):
        predicted |= some
    found = replies(model, questions, recipe)
    assert found["too long"].details["finish"] == "too_long"
    assert predicted == {text: found[text].details["horizon"] for text in prompts}
    assert predicted[prompts[1]] <= 9


def test_what_cannot_be_planned_is_not_predicted():
    recipe = resolve(lastword.Recipe(length=lastword.Survival(8)), Poisoned())
    found = list(LocalEngine(Poisoned()).predict_lengths(asked(1, 2, POISON, 3), recipe, max_batch_size=2))
    assert [set(some) for some in found if some] == [{0, 1}]
