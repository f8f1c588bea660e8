from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import lastword
from lastword import (
    Budget,
    Cosine,
    EqualShares,
    Finish,
    Fixed,
    GrowWhenFull,
    MostConfident,
    Quantile,
    Recipe,
    Reread,
    Sampling,
    StopAtEnd,
    Survival,
    Timesteps,
)
from lastword.errors import SettingError
from lastword.policies.commit import CommitRule
from lastword.policies.length.policy import LengthPolicy, ModelLimits, Plan
from tests.laws.test_decode_laws import RULES

PROMPT = [5, 42, 17]


def spent(model, recipe, prompts=(PROMPT,), **settings):
    *_, last = lastword.decode(model, list(prompts), recipe, **settings)
    return last, {
        name: (getattr(last.cost, name) + getattr(last.probe_cost, name)).tolist()
        for name in ("forward_passes", "tokens_computed")
    }


@pytest.mark.parametrize(
    ("unmask", "block", "slots"),
    [
        (MostConfident(), None, 10),
        (MostConfident(EqualShares(2.0)), None, 20),
        (MostConfident(EqualShares(3.0)), 8, 8 * 3 + 3),  # three passes a block, one left for three
        (MostConfident(Cosine(4.0)), None, 40),
        (lastword.AboveThreshold(0.01), None, 10),  # it might be unsure, so a pass a slot
        (lastword.LeftmostFirst(MostConfident(EqualShares(2.0))), 8, 8 + 8),  # five passes a block
        (lastword.CoinFlip(Timesteps(0.5)), None, 5),
    ],
    ids=str,
)
def test_the_canvas_is_what_the_rule_can_fill_at_worst(unmask, block, slots, llada):
    recipe = Recipe(length=Budget(Fixed(60), max_passes=10), unmask=unmask, block=block)
    last, cost = spent(llada, recipe)
    assert last.plan.horizon.tolist() == [slots]
    assert cost["forward_passes"][0] <= 10


def test_the_probe_is_part_of_the_bill(llada):
    length = Budget(Survival(40, Quantile(0.99)), max_passes=10)
    last, cost = spent(llada, Recipe(length=length))
    assert last.plan.horizon.tolist() == [9]
    assert cost["forward_passes"] == [10]


def test_columns_are_counted_at_full_width(llada):
    # n passes of 3 + n columns: 9 of 12 make 108, 10 of 13 would make 130.
    last, cost = spent(llada, Recipe(length=Budget(Fixed(40), max_tokens_computed=129)))
    assert last.plan.horizon.tolist() == [9]
    assert cost["tokens_computed"] == [108]
    guided = Recipe(length=Budget(Fixed(40), max_tokens_computed=129), sampling=Sampling(guidance=0.5))
    last, cost = spent(llada, guided)
    assert last.plan.horizon.tolist() == [6]
    assert cost["tokens_computed"] == [2 * 6 * 9]


def test_a_plan_within_the_budget_stays_as_it_is(llada):
    last, _ = spent(llada, Recipe(length=Budget(Fixed(7), max_passes=10)))
    assert last.plan.horizon.tolist() == [7]


def test_each_row_has_a_budget_of_its_own(llada):
    length = Budget(Fixed(40), max_tokens_computed=100)
    together, cost = spent(llada, Recipe(length=length), [[5] * 2, [6] * 20])
    assert together.plan.horizon.tolist() == [9, 4]
    assert max(cost["tokens_computed"]) <= 100


def test_growth_stops_where_the_money_does():
    toy = lastword.Toy(0.0)  # it never ends
    grown = lastword.generate(toy, "abc", length=Budget(GrowWhenFull(Fixed(4), increment=4), max_passes=11), block=2)
    assert (grown.finish, len(grown.tokens), grown.cost.forward_passes) == (Finish.TRUNCATED, 11, 11)
    around = lastword.generate(toy, "abc", length=GrowWhenFull(Budget(Fixed(4), max_passes=11), increment=4), block=2)
    assert around.tokens == grown.tokens


LIMITS = [(7, None), (13, None), (None, 150)]  # forward passes, tokens computed


@pytest.mark.full
@pytest.mark.parametrize("number", range(3), ids=lambda number: str(LIMITS[number]))
def test_no_recipe_spends_more(number, llada, dream):
    """Every rule under every setting meets both models and both ways to part the answer."""
    limits = LIMITS[number]
    inner = [Fixed(30), GrowWhenFull(Fixed(5), increment=2, limit=40), Survival(20)]
    inner += [StopAtEnd(Reread(Survival(20), increment=3)), GrowWhenFull(Reread(Survival(9)), increment=1, limit=30)]
    met = 0
    for place, unmask in enumerate(RULES, number):
        length = Budget(inner[place % len(inner)], *limits)
        proposes = unmask.traits.follows_schedule and bool(place % 2)
        models = (llada, dream) if place % 4 < 2 else (dream, llada)
        for model, block in zip(models, (None, 3)):
            try:
                recipe = Recipe(length=length, unmask=unmask, block=block)
            except SettingError:
                continue
            recipe = replace(recipe, sampling=Sampling(propose_mask=proposes))
            _, cost = spent(model, recipe, [PROMPT, [9]])
            for name, limit in zip(("forward_passes", "tokens_computed"), limits):
                assert limit is None or max(cost[name]) <= limit, (recipe, cost)
            met += 1
    assert met > 16


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (Budget(Survival(40), max_passes=1), "allow at least 2 passes"),
        (Budget(Survival(40), max_tokens_computed=46), "at least 2 passes and 47 tokens"),
        (Budget(Fixed(40), max_tokens_computed=3), "at least 1 passes and 4 tokens"),
    ],
    ids=str,
)
def test_a_budget_that_pays_for_nothing_is_refused_with_what_it_takes(length, words, llada):
    with pytest.raises(SettingError, match=words):
        next(lastword.decode(llada, [PROMPT], Recipe(length=length)))


def test_only_what_is_given_is_bounded():
    assert Budget(max_tokens_computed=90000).resolved(ModelLimits(64)).max_passes is None
    toy = lastword.Toy()
    toy.default_max_new_tokens = 300
    recipe = Recipe(length=Budget(Fixed(300), max_tokens_computed=10**6))
    first = next(lastword.decode(toy, [[0]], recipe))
    assert first.plan.horizon.tolist() == [300]


@dataclass(frozen=True)
class Closed(LengthPolicy):
    """Plans `slots`, and closes them with `ends` end tokens."""

    slots: int
    ends: int

    def plan(self, probe):
        return Plan(torch.tensor([self.slots]), end_suffix=torch.tensor([self.ends]))


@pytest.mark.parametrize(("slots", "ends"), [(30, 4), (9, 4), (3, 12), (2, 3), (30, 40)])
def test_end_tokens_that_close_the_answer_are_paid_for(slots, ends, llada):
    recipe = Recipe(length=Budget(Closed(slots, ends), max_tokens_computed=108))
    last, cost = spent(llada, recipe)
    assert cost["tokens_computed"][0] <= 108  # nine passes of 3 + 9 columns, to the last one
    assert int(last.canvas.horizon) == min(slots + ends, 9)
    suffix = int(last.canvas.suffix)
    assert last.canvas.answer_ids(0)[-suffix:] == [llada.ids.end] * suffix
    assert suffix <= ends
    assert bool(last.canvas.fillable[0, last.canvas.start])  # the model writes at least a slot


@dataclass(frozen=True)
class Hasty(CommitRule):
    """Is ready after two passes in a block."""

    def ready(self, prediction, canvas, clock):
        return clock.in_window >= 1


def test_a_row_that_asks_for_room_nobody_pays_for_is_committed_all_the_same(llada):
    length = Budget(Reread(Survival(40), increment=1), max_passes=7)
    last, cost = spent(llada, Recipe(length=length, commit=Hasty(), block=2))
    assert last.canvas.horizon.tolist() == last.plan.max_new_tokens.tolist() == [6]
    assert cost["forward_passes"] == [1 + 2]


def test_a_budget_needs_a_bound():
    with pytest.raises(SettingError, match=r"without a bound; set max_passes=256"):
        Budget(Fixed(40))
    with pytest.raises(SettingError, match="without a bound"):
        lastword.generate(lastword.Toy(), "abc", length="budget")


def test_no_passes_are_no_budget():
    with pytest.raises(SettingError, match=r"Budget\(max_passes=0\)"):
        Budget(max_passes=0)
