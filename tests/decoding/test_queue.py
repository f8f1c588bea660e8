"""Prompts that come and go while others decode, and bounds on their answers."""

from dataclasses import replace

import pytest
import torch

import lastword
from lastword.decoding import static_shapes as scheduling
from lastword.decoding.loop import decode_steps
from lastword.decoding.running_batch import PlannedRequest, RequestQueue, plan_lengths
from lastword.decoding.sampling import RowGenerators
from lastword.errors import SettingError
from lastword.models.storage import PooledKVStorage
from lastword.recipe.resolve import resolve
from tests.decoding.decoded import PROMPTS, alone, answers, static_shapes
from tests.laws.axes import recipe_of, tiny

GROWS = lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=6), increment=3, limit=12))
RECIPES = [
    recipe_of(length=GROWS, block=4),
    recipe_of(length=GROWS, block=4, cache=lastword.DualCache()),
    recipe_of(length=GROWS, block=4, sampling=lastword.Sampling(temperature=0.7)),
]
BOTH = pytest.mark.parametrize("fixed", [False, True], ids=["as wide as needed", "fixed shapes"])


class Visitors(RequestQueue):
    """Prompts by the pass before which they come, and those that leave before another."""

    def __init__(self, model, recipe, comes, leaves=()):
        self._model, self._recipe = model, recipe
        self._comes, self._leaves, self.passes = dict(comes), dict(leaves), 0

    def take(self, free):
        due = [number for number, at in self._comes.items() if at <= self.passes][:free]
        for number in due:
            del self._comes[number]
        return [self._ticket(number) for number in due]

    def cancelled(self):
        return {number for number, at in self._leaves.items() if at == self.passes}

    def _ticket(self, number):
        prompt = torch.tensor(PROMPTS[number])
        ((plan, cost),) = plan_lengths(self._model, self._recipe, [prompt])
        return PlannedRequest(number, prompt, plan, cost, RowGenerators([number]))


def visited(model, recipe, comes, leaves=(), slots=3, columns=None):
    recipe, longest = resolve(recipe, model, PROMPTS), max(map(len, PROMPTS))
    queue, found = Visitors(model, recipe, comes, leaves), {}
    for step in decode_steps(
        model, recipe, queue, max_batch_size=slots, max_prompt_tokens=longest, pool_tokens=columns
    ):
        queue.passes += 1
        for done in step.finished:
            ledger = (done.horizon, done.probe_cost, done.cost)
            found[done.request_id] = (done.canvas.answer_ids(0), *ledger)
    return found


@BOTH
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.label())
def test_whoever_comes_later_is_what_it_is_alone(recipe, fixed):
    model = tiny("llada-tiny-eos")
    solo = alone(model, recipe)
    with static_shapes(fixed):
        found = visited(model, recipe, {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3})
    assert found == dict(enumerate(solo))


@BOTH
def test_whoever_leaves_frees_a_slot_and_disturbs_nobody(fixed):
    model, recipe = tiny("llada-tiny-eos"), RECIPES[1]
    solo = alone(model, recipe)
    with static_shapes(fixed):
        found = visited(model, recipe, {0: 0, 1: 0, 2: 0, 3: 0}, {0: 2}, slots=2)
    assert found == {number: solo[number] for number in (1, 2, 3)}


@pytest.mark.parametrize(
    ("columns", "name", "every"),
    [(1, "llada-tiny-eos", 0), (1, "dream-tiny", 1), (1000, "dream-tiny", 0)],
    ids=["it grows, prompt kept", "it grows, prompt anew", "room"],
)
def test_rows_in_a_pool_are_what_they_are_alone(columns, name, every, monkeypatch):
    """Their regions are as long as predicted; rows outgrow them, leave them and take those of others."""
    moves, made = [], []
    real, begin = PooledKVStorage._move, PooledKVStorage.__init__
    monkeypatch.setattr(PooledKVStorage, "_move", lambda pool, *to: moves.append(to) or real(pool, *to))
    monkeypatch.setattr(PooledKVStorage, "__init__", lambda pool, *of: made.append(pool) or begin(pool, *of))
    monkeypatch.setattr(scheduling, "COLUMN_MULTIPLE", 1)
    model = tiny(name)
    recipe = replace(RECIPES[1], cache=lastword.DualCache(every))
    solo = alone(model, recipe)
    with static_shapes():
        found = visited(model, recipe, {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3}, slots=3, columns=columns)
    assert found == dict(enumerate(solo))
    (pool,) = made
    assert (pool.times_grown > 0) == (columns == 1)
    assert moves  # a row that outgrew its region


@BOTH
@pytest.mark.parametrize("recipe", RECIPES[:2], ids=lambda recipe: recipe.label())
def test_whoever_left_is_computed_no_more(recipe, fixed):
    model = tiny("llada-tiny-eos")
    recipe, longest = resolve(recipe, model, PROMPTS), max(map(len, PROMPTS))
    queue, spent = Visitors(model, recipe, {0: 0, 1: 0}, {0: 2}), []
    with static_shapes(fixed):
        for step in decode_steps(model, recipe, queue, max_batch_size=2, max_prompt_tokens=longest):
            queue.passes += 1
            spent.append(int(step.cost.forward_passes[0]))
    assert len(spent) > 3  # the other one goes on
    assert len({*spent[2:]}) == 1


def test_when_everybody_left_decoding_is_over():
    assert visited(tiny("llada-tiny-eos"), RECIPES[0], {0: 0, 1: 0}, {0: 1, 1: 1}) == {}


@BOTH
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.label())
def test_no_answer_is_longer_than_its_bound(recipe, fixed):
    model, most = tiny("llada-tiny-eos"), [3, 1, 2, 40, 5, 4]
    solo = [
        answers(model, recipe, [prompt], seeds=[index], max_new_tokens=[most[index]])[0]
        for index, prompt in enumerate(PROMPTS)
    ]
    assert all(len(answer) <= bound for (answer, *_), bound in zip(solo, most))
    with static_shapes(fixed):
        assert answers(model, recipe, max_new_tokens=most, max_batch_size=2) == solo


def test_a_bound_that_nobody_meets_changes_nothing():
    model, recipe = tiny("llada-tiny-eos"), RECIPES[0]
    assert answers(model, recipe, max_new_tokens=[1000] * 6) == answers(model, recipe)


@pytest.mark.parametrize("most", [[3], [0] * 6])
def test_bounds_that_are_none_are_refused(most):
    with pytest.raises(SettingError, match=r"max_new_tokens|bounds"):
        answers(tiny("llada-tiny-eos"), RECIPES[0], max_new_tokens=most)
