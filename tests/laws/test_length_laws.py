"""What must hold for every policy that resizes: text stays, decoding ends, rows decode as if alone."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.length import LengthPolicy
from tests.golden.cases import FOLDER
from tests.laws.test_decode_laws import (
    CACHES,
    UNEQUAL,
    check_rows_against_solo_runs,
    prompts,
    recipe_of,
)

DAEDAL = lastword.Daedal(
    initial=6, limit=30, by=4, window=4, enough=0.3, keep_growing=0.97, lost=0.3
)
RESIZING = [
    DAEDAL,
    lastword.Daedal(initial=5, limit=13, by=6, window=2, enough=0.0, keep_growing=1.0, lost=0.9),
    lastword.RhoEos(initial=10, limit=40, unit=2),
    lastword.RhoEos(
        initial=24, limit=40, unit=4, signal="released", window=8, pace="linear", passes=9
    ),
    lastword.RhoEos(initial=12, limit=30, unit=3, low=0.0, high=0.0, pace="const"),
    lastword.GrowWhenFull(lastword.Fixed(5), by=6, limit=30),
    lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=16), by=4, limit=40)),
    lastword.GrowWhenFull(lastword.StopAtEnd(lastword.Fixed(7)), by=1, limit=9),
    lastword.SurvivalAtStep(2, lastword.Survival(24)),
    lastword.SurvivalAtStep(0, lastword.Survival(16, lastword.Quantile(0.5), ends="any")),
    lastword.StopAtEnd(DAEDAL),
    lastword.Reread(lastword.Survival(24), by=5),
    lastword.Budget(lastword.GrowWhenFull(lastword.Survival(16), by=3, limit=40), passes=12),
    lastword.Reread(lastword.Survival(24, lastword.Quantile(0.3), reading=lastword.Auto())),
    lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Reread(lastword.Survival(16)), limit=24)),
]
MODELS = ["llada-tiny-eos", "llada-tiny", "dream-tiny"]
RULES = [
    lastword.AboveThreshold(0.9),
    lastword.AboveThreshold(0.25),
    lastword.MostConfident(lastword.EqualShares(2.5)),
    lastword.LowestEntropy(lastword.Timesteps(0.7, keep_idle=True)),
    lastword.CoinFlip(),
]
SAMPLINGS = [
    lastword.Sampling(),
    lastword.Sampling(temperature=0.8),
    lastword.Sampling(guidance=0.7),
    lastword.Sampling(forbid_end=True),
    lastword.Sampling(end_last=True),
]
recipes = st.builds(
    recipe_of,
    length=st.sampled_from(RESIZING),
    unmask=st.sampled_from(RULES),
    sampling=st.sampled_from(SAMPLINGS),
    block=st.sampled_from([None, 1, 4, 7, 32]),
    cache=st.sampled_from(CACHES),
).filter(bool)


@cache
def model(name):
    return lastword.load(FOLDER / name, device="cpu")


@dataclass(frozen=True)
class Watched(LengthPolicy):
    """A policy under watch: every revision is held against what the policy promises."""

    length: LengthPolicy

    @property
    def reads_answer(self):
        return self.length.reads_answer

    def plan(self, probe):
        return self.length.plan(probe)

    def revise(self, canvas, prediction, clock):
        revised = self.length.revise(canvas, prediction, clock)
        before, after = canvas.horizon, revised.horizon
        changed = before != after
        open_still = (canvas.masked & clock.window.columns(canvas.width)).any(-1)
        if self.length.resizes == "never":
            assert not changed.any()
        if self.length.resizes == "between blocks":
            assert not (changed & open_still).any()
        assert (after >= 1).all()
        assert not (changed & ~prediction.covers.any(-1)).any()  # a finished row is left alone
        for row in range(len(after)):
            assert text(canvas, row) == text(revised, row)
            assert len(revised.answer_of(row)) == after[row]
        return revised


def text(canvas, row):
    kept = canvas.answer_of(row)[: int(canvas.least_horizon[row])]
    return [token for token in kept if token != canvas.ids.mask]


def limit_of(length):
    if isinstance(length, lastword.SurvivalAtStep | lastword.Reread):
        return length.length.limit
    if isinstance(length, lastword.StopAtEnd | lastword.Budget):
        return limit_of(length.length)
    return length.limit


UNDER_CACHES = [
    recipe_of(length=length, unmask=lastword.AboveThreshold(0.25), cache=cache, block=4)
    for length in RESIZING
    for cache in (lastword.NoCache(), lastword.DualCache())
] + [
    lastword.Recipe(
        length=lastword.Reread(lastword.Survival(24), by=5),
        unmask=lastword.AboveThreshold(0.25),
        cache=cache,
        block=4,
    )
    for cache in (lastword.PrefixCache(), lastword.FeatureCache(7, 3, 0.3))
]


@pytest.mark.parametrize("recipe", [r for r in UNDER_CACHES if r], ids=str)
@pytest.mark.parametrize("name", ["llada-tiny-eos", "dream-tiny"])
def test_rows_of_unequal_width_equal_their_solo_runs(name, recipe):
    check_rows_against_solo_runs(model(name), UNEQUAL, recipe)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MODELS), prompts, recipes)
def test_each_row_of_a_batch_equals_its_solo_run(name, batch, recipe):
    check_rows_against_solo_runs(model(name), batch, recipe)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MODELS), prompts, recipes)
def test_text_and_prompt_stay_and_no_mask_is_left(name, batch, recipe):
    watched = recipe.with_choices(length=Watched(recipe.length))
    for step in lastword.decode(model(name), batch, watched):
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
        lastword.GrowWhenFull(lastword.Survival(16), by=3, limit=40),
        lastword.StopAtEnd(lastword.Reread(lastword.Survival(24), by=5)),
    )
    for most in ({"passes": 12}, {"columns": 160}, {"passes": 9, "columns": 200})
]


@settings(max_examples=16, deadline=None)
@given(
    st.sampled_from(MODELS),
    prompts,
    st.builds(
        recipe_of,
        length=st.sampled_from(BUDGETS),
        unmask=st.sampled_from(RULES),
        sampling=st.sampled_from(SAMPLINGS),
        block=st.sampled_from([None, 1, 4, 7, 32]),
        cache=st.sampled_from(CACHES),
    ).filter(bool),
)
def test_no_row_spends_more_than_its_budget(name, batch, recipe):
    *_, last = lastword.decode(model(name), batch, recipe)
    for row in range(len(batch)):
        cost, probe = last.cost.row(row), last.probe_cost.row(row)
        for what in ("passes", "columns"):
            most = getattr(recipe.length, what)
            assert most is None or cost[what] + probe[what] <= most


@pytest.mark.parametrize(
    ("length", "probes"),
    [
        (lastword.RhoEos(initial=10, limit=40), 0),
        (lastword.SurvivalAtStep(2, lastword.Survival(24)), 0),
        (lastword.GrowWhenFull(lastword.Survival(24), limit=40), 1),
        (lastword.GrowWhenFull(lastword.Fixed(7), limit=40), 0),
        (lastword.Reread(lastword.Survival(24)), 1),
        (lastword.Daedal(initial=6, limit=30, by=8, enough=0.0), 1),
        (lastword.Daedal(initial=6, limit=30, by=8, enough=1.0), 3),  # 6, 14, 22, but not 30
        (lastword.Daedal(initial=30, limit=30), 0),
    ],
    ids=str,
)
def test_probes_are_counted_apart_from_passes(length, probes):
    seen = []
    recipe = lastword.Recipe(length=length, block=32)
    for step in lastword.decode(model("llada-tiny"), [[5, 6, 7]], recipe):
        seen.append(step)
    assert seen[-1].probe_cost.passes.tolist() == [probes]
    assert seen[-1].cost.passes.tolist() == [len(seen)]


@pytest.mark.parametrize("length", RESIZING, ids=str)
def test_a_resizing_policy_survives_json(length):
    recipe = lastword.Recipe(length=length, block=4)
    assert lastword.Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    "cache", [lastword.NoCache(), lastword.PrefixCache(), lastword.DualCache()], ids=str
)
@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
def test_a_grown_row_goes_on_as_if_it_had_started_there(name, cache):
    """Growth falls on a block's end, where a block cache starts anew: nothing of the shorter canvas is left.

    A feature cache keeps the prompt and its intervals; that it renews the answer, tests/cache says.
    """
    grow = lastword.GrowWhenFull(lastword.Fixed(8), by=8, limit=16)
    recipe = lastword.Recipe(length=grow, cache=cache, block=4)
    sampling = lastword.Sampling(forbid_end=True)
    recipe = recipe.with_choices(sampling=sampling)
    batch = [[5, 42, 17, 100], [9, 11]]
    steps = list(lastword.decode(model(name), batch, recipe))
    grown = next(place for place, step in enumerate(steps) if step.canvas.width > 12)
    start = steps[grown].canvas
    assert start.masked.sum(-1).tolist() == [12, 12]
    fresh = lastword.decode(
        model(name),
        batch,
        recipe.with_choices(length=lastword.Fixed(16)),
        hooks=lastword.Hooks(
            tokens=lambda at, canvas: start.tokens if at is None else canvas.tokens
        ),
    )
    after = [step.canvas.tokens for step in steps[grown + 1 :]]
    again = [step.canvas.tokens for step in fresh]
    assert len(after) == len(again) == 12
    assert all(torch.equal(a, b) for a, b in zip(after, again))
