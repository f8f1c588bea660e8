"""What must hold for every policy that resizes: text stays, decoding ends, rows decode as if alone."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings, strategies as st

import lastword
from lastword.policies.length.wrappers import Wrapper, combined_traits
from tests.laws.axes import BLOCKS, CACHES, MODELS, RESIZING, SAMPLINGS, prompts, recipe_of, recipes, tiny

RULES = [
    lastword.AboveThreshold(0.9),
    lastword.AboveThreshold(0.25),
    lastword.MostConfident(lastword.EqualShares(2.5)),
    lastword.LowestEntropy(lastword.Timesteps(0.7, keep_idle=True)),
    lastword.CoinFlip(),
]


@dataclass(frozen=True)
class Watched(Wrapper):
    """A policy under watch: every revision is held against what the policy promises."""

    def revise(self, canvas, prediction, clock, state):
        revised, after_state = self.length.revise(canvas, prediction, clock, state)
        again, _ = self.length.revise(canvas, prediction, clock, state)
        assert torch.equal(again.tokens, revised.tokens)  # it is pure
        before, after = canvas.horizon, revised.horizon
        changed = before != after
        open_still = (canvas.masked & clock.window.columns(canvas.width)).any(-1)
        traits = combined_traits(self.length)
        if traits.resizes == "never":
            assert not changed.any()
        if traits.resizes == "between blocks":  # or as the row ends
            assert not (changed & open_still & revised.masked.any(-1)).any()
        assert traits.grows or (after <= before).all()
        assert (after >= 1).all()
        assert not (changed & ~prediction.read_mask.any(-1)).any()  # a finished row is left alone
        for row in range(len(after)):
            assert text(canvas, row) == text(revised, row)
            assert len(revised.answer_ids(row)) == after[row]
        return revised, after_state


def text(canvas, row):
    kept = canvas.answer_ids(row)[: int(canvas.min_horizon[row])]
    return [token for token in kept if token != canvas.ids.mask]


def limit_of(length):
    if isinstance(length, lastword.SurvivalAtStep | lastword.Reread):
        return length.length.limit
    if isinstance(length, lastword.StopAtEnd | lastword.Budget):
        return limit_of(length.length)
    return length.limit


@settings(max_examples=12)
@given(st.sampled_from(MODELS), prompts, recipes(RESIZING))
def test_text_and_prompt_stay_and_no_mask_is_left(name, batch, recipe):
    watched = recipe.with_choices(length=Watched(recipe.length))
    for step in lastword.decode(tiny(name), batch, watched):
        canvas = step.canvas
        for row, prompt in enumerate(batch):
            assert canvas.tokens[row, canvas.start - len(prompt) : canvas.start].tolist() == prompt
        assert (canvas.horizon <= limit_of(recipe.length)).all()
    assert not canvas.masked.any()
    assert not (canvas.tokens == canvas.ids.mask).any()


BUDGETS = [
    lastword.Budget(inner, **most)
    for inner in (
        lastword.Fixed(20),
        lastword.GrowWhenFull(lastword.Survival(16), increment=3, limit=40),
        lastword.StopAtEnd(lastword.Reread(lastword.Survival(24), increment=5)),
    )
    for most in ({"max_passes": 12}, {"max_tokens_computed": 160}, {"max_passes": 9, "max_tokens_computed": 200})
]


@settings(max_examples=16)
@given(
    st.sampled_from(MODELS),
    prompts,
    st.builds(
        recipe_of,
        length=st.sampled_from(BUDGETS),
        unmask=st.sampled_from(RULES),
        sampling=st.sampled_from(SAMPLINGS),
        block=st.sampled_from(BLOCKS),
        cache=st.sampled_from(CACHES),
    ).filter(bool),
)
def test_no_row_spends_more_than_its_budget(name, batch, recipe):
    *_, last = lastword.decode(tiny(name), batch, recipe)
    for row in range(len(batch)):
        cost, probe = last.cost.row(row), last.probe_cost.row(row)
        spent = [ours + theirs for ours, theirs in zip(cost, probe)]
        for bound, value in zip((recipe.length.max_passes, recipe.length.max_tokens_computed), spent):
            assert bound is None or value <= bound


@pytest.mark.parametrize(
    ("length", "probes"),
    [
        (lastword.RhoEos(initial=10, limit=40), 0),
        (lastword.SurvivalAtStep(2, lastword.Survival(24)), 0),
        (lastword.GrowWhenFull(lastword.Survival(24), limit=40), 1),
        (lastword.GrowWhenFull(lastword.Fixed(7), limit=40), 0),
        (lastword.Reread(lastword.Survival(24)), 1),
        (lastword.Daedal(initial=6, limit=30, expansion_factor=8, eos_threshold=0.0), 1),
        (lastword.Daedal(initial=6, limit=30, expansion_factor=8, eos_threshold=1.0), 3),  # 6, 14, 22, but not 30
        (lastword.Daedal(initial=30, limit=30), 0),
    ],
    ids=str,
)
def test_probes_are_counted_apart_from_passes(length, probes):
    seen = []
    recipe = lastword.Recipe(length=length, block=32)
    for step in lastword.decode(tiny("llada-tiny"), [[5, 6, 7]], recipe):
        seen.append(step)
    assert seen[-1].probe_cost.forward_passes.tolist() == [probes]
    assert seen[-1].cost.forward_passes.tolist() == [len(seen)]


def test_a_resizing_policy_survives_json():
    for length in RESIZING:
        recipe = lastword.Recipe(length=length, block=4)
        assert lastword.Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("cache", [lastword.NoCache(), lastword.PrefixCache(), lastword.DualCache()], ids=str)
@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
def test_a_grown_row_goes_on_as_if_it_had_started_there(name, cache):
    """Growth falls on a block's end, where a block cache starts anew: nothing of the shorter canvas is left.

    A feature cache keeps the prompt and its intervals; that it renews the answer, tests/cache says.
    """
    grow = lastword.GrowWhenFull(lastword.Fixed(8), increment=8, limit=16)
    recipe = lastword.Recipe(length=grow, cache=cache, block=4)
    sampling = lastword.Sampling(forbid_end=True)
    recipe = recipe.with_choices(sampling=sampling)
    batch = [[5, 42, 17, 100], [9, 11]]
    steps = list(lastword.decode(tiny(name), batch, recipe))
    grown = next(place for place, step in enumerate(steps) if step.canvas.width > 12)
    start = steps[grown].canvas
    assert start.masked.sum(-1).tolist() == [12, 12]
    fresh = lastword.decode(
        tiny(name),
        batch,
        recipe.with_choices(length=lastword.Fixed(16)),
        hooks=lastword.Hooks(tokens=lambda at, canvas: start.tokens if at is None else canvas.tokens),
    )
    after = [step.canvas.tokens for step in steps[grown + 1 :]]
    again = [step.canvas.tokens for step in fresh]
    assert len(after) == len(again) == 12
    assert all(torch.equal(a, b) for a, b in zip(after, again))
