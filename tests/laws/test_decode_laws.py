"""What must hold for every decoding: each row as if alone, the prompt untouched, no mask left."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.errors import SettingError
from tests.golden.cases import model

LENGTHS = [
    lastword.Fixed(7),
    lastword.Survival(limit=16),
    lastword.Survival(limit=12, estimate=lastword.Quantile(0.8)),
    lastword.StopAtEnd(lastword.Fixed(14)),
    lastword.Secant(limit=20, initial=5, enough=0.3, within=2, reading=lastword.Hazard()),
]
SCHEDULES = [
    lastword.EqualShares(),
    lastword.EqualShares(2.5),
    lastword.Timesteps(1.5),
    lastword.Timesteps(0.7, keep_idle=True),
]
RULES = [
    rule(schedule)
    for rule in (
        lastword.MostConfident,
        lastword.LargestMargin,
        lastword.LowestEntropy,
        lastword.AtRandom,
    )
    for schedule in SCHEDULES
] + [
    lastword.MostConfident(order_temperature=0.5),
    lastword.CoinFlip(),
    lastword.CoinFlip(lastword.Timesteps(2.0)),
    lastword.AboveThreshold(0.3),
    lastword.AboveThreshold(0.3, pace=1.5),
    lastword.LeftmostFirst(lastword.LowestEntropy(lastword.Timesteps(2.0, keep_idle=True))),
    lastword.Factor(),
    lastword.EntropyBound(1.0),
    lastword.MostConfident(lastword.Cosine(2.0)),
    lastword.MaskGit(),
    lastword.MaskGit(lastword.Cosine(3.0), noise=1.0),
]
CACHES = [
    lastword.NoCache(),
    lastword.PrefixCache(),
    lastword.DualCache(),
    lastword.FeatureCache(7, 3, 0.3),
    lastword.FeatureCache(2, 3, 0.0),
]
SAMPLINGS = [
    lastword.Sampling(),
    lastword.Sampling(temperature=0.8),
    lastword.Sampling(temperature=0.5, top_p=0.9, top_k=20, score="draw"),
    lastword.Sampling(guidance=0.7),
    lastword.Sampling(forbid_end=True),
    lastword.Sampling(end_last=True),
]


def recipe_of(**choices):
    """A recipe, or None where the parts do not go together: tests/test_composition.py says why."""
    try:
        return lastword.Recipe(**choices)
    except SettingError:
        return None


recipes = st.builds(
    recipe_of,
    length=st.sampled_from(LENGTHS),
    unmask=st.sampled_from(RULES),
    sampling=st.sampled_from(SAMPLINGS),
    block=st.sampled_from([None, 1, 4, 7, 32]),
    cache=st.sampled_from(CACHES),
).filter(bool)
prompts = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=3)


UNEQUAL = [[293, 170, 195, 181, 26, 70, 351, 346, 298], [7], [1, 251, 110, 248, 72]]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_rows_of_unequal_width_equal_their_solo_runs(family, length, cache):
    """The case chance finds too seldom: every row padded differently, each block out of step."""
    recipe = lastword.Recipe(
        length=length, unmask=lastword.AboveThreshold(0.25), cache=cache, block=4
    )
    check_rows_against_solo_runs(model(family), UNEQUAL, recipe)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["llada", "dream"]), prompts, recipes)
def test_each_row_of_a_batch_equals_its_solo_run(family, batch, recipe):
    check_rows_against_solo_runs(model(family), batch, recipe)


def check_rows_against_solo_runs(model, batch, recipe):
    answers = lastword.generate(model, batch, recipe=recipe, seed=5)
    for row, answer in enumerate(answers):
        alone = lastword.generate(model, batch[row], recipe=recipe, seed=5 + row)
        assert answer.canvas == alone.canvas
        assert answer.horizon == alone.horizon
        assert answer.cost == alone.cost
        assert answer.probe_cost == alone.probe_cost
        assert answer.finish == alone.finish


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["llada", "dream"]), prompts, recipes)
def test_masks_only_ever_fill_and_the_prompt_stays(family, batch, recipe):
    before = None
    for step in lastword.decode(model(family), batch, recipe):
        canvas = step.canvas
        for row, prompt in enumerate(batch):
            assert canvas.tokens[row, canvas.start - len(prompt) : canvas.start].tolist() == prompt
        if before is not None:
            written = ~before.masked
            assert torch.equal(before.tokens[written], canvas.tokens[written])
            assert (canvas.masked.sum(-1) <= before.masked.sum(-1)).all()
        assert not (step.chosen & ~canvas.answer).any()
        before = canvas
    assert not before.masked.any()


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["llada", "dream"]), prompts, st.sampled_from(RULES), st.integers(1, 12))
def test_rules_stay_inside_the_window(family, batch, rule, block):
    recipe = lastword.Recipe(length=lastword.Fixed(11), unmask=rule, block=block)
    for step in lastword.decode(model(family), batch, recipe):
        inside = step.clock.window.columns(step.canvas.width)
        assert not (step.chosen & ~inside).any()


@pytest.mark.parametrize("slots", [1, 2, 31, 32, 33, 77])
@pytest.mark.parametrize("block", [None, 32])
def test_any_length_works_with_any_block(slots, block):
    answer = lastword.generate(model("llada"), [5, 6], length=lastword.Fixed(slots), block=block)
    assert len(answer.canvas) == slots
    assert answer.cost == {
        "passes": slots,
        "columns": slots * (slots + 2),
        "squares": slots * (slots + 2) ** 2,
    }


def test_the_probe_is_paid_for_and_apart():
    answer = lastword.generate(model("llada"), [5, 6, 7], length=lastword.Survival(limit=40))
    assert answer.probe_cost == {"passes": 1, "columns": 43, "squares": 43**2}
    assert answer.cost["passes"] == answer.horizon


def test_guidance_pays_for_both_branches():
    plain = lastword.generate(model("llada"), [5, 6], length=lastword.Fixed(8))
    guided = lastword.generate(
        model("llada"),
        [5, 6],
        length=lastword.Fixed(8),
        sampling=lastword.Sampling(guidance=1.0),
    )
    assert guided.cost["passes"] == plain.cost["passes"]
    assert guided.cost["columns"] == 2 * plain.cost["columns"]


def test_finished_rows_leave_the_forward():
    recipe = lastword.Recipe(length=lastword.Survival(limit=60))
    sizes = [
        (int(step.prediction.reading.rows.numel()), int(step.canvas.masked.any(-1).sum()))
        for step in lastword.decode(model("llada"), [[1, 251, 110, 248, 72], [7]], recipe)
    ]
    assert sizes[0][0] == 2
    assert sizes[-1][0] == 1  # the longer row finishes alone
