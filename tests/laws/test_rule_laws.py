"""What must hold for rules of one kind: bounds, order, early commits, columns a pass does not see."""

from itertools import islice

import pytest
import torch
from hypothesis import given, strategies as st

import lastword
from lastword.canvas.canvas import Clock
from tests.golden.cases import model
from tests.laws.axes import CACHES, COMMITS, RULES, SLOW_FAST, UNEQUAL

FAMILIES = ["llada", "dream"]


# Early commits


def canvases(family, recipe, batch=UNEQUAL):
    return [step.canvas.tokens for step in lastword.decode(model(family), batch, recipe)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("commit", [c for c in COMMITS if not getattr(c, "literals", ())], ids=str)
def test_a_commit_cuts_a_run_short_and_changes_nothing_before(family, commit):
    saved = 0
    for prompt in UNEQUAL:
        patient, early = (
            canvases(family, lastword.Recipe(length=lastword.Fixed(13), commit=rule), [prompt])
            for rule in (lastword.Never(), commit)
        )
        assert all(torch.equal(a, b) for a, b in zip(early[:-1], patient))
        saved += len(patient) - len(early)
    assert saved > 0


@pytest.mark.parametrize("kind", [lastword.Prophet, lastword.StableMargin])
@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_a_bar_out_of_reach_is_never_and_a_bar_of_nothing_is_at_once(kind, cache):
    fields = (
        ("early_threshold", "middle_threshold", "late_threshold")
        if kind is lastword.Prophet
        else ("start_threshold", "end_threshold")
    )

    def run(**choices):
        return lastword.generate(model("llada"), UNEQUAL, length="fixed:13", block=4, cache=cache, **choices)

    far = run(commit=kind(**dict.fromkeys(fields, 1e9)))
    never = run()
    assert [(a.canvas, a.cost) for a in far] == [(a.canvas, a.cost) for a in never]
    assert [a.cost.forward_passes for a in run(commit=kind(**dict.fromkeys(fields, 0.0)))] == [1, 1, 1]


# What a pass does not see


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", SLOW_FAST, ids=str)
def test_what_lies_behind_the_span_cannot_matter(family, rule):
    """Fast passes that see less say what a canvas that ends there would say."""
    recipe = lastword.Recipe(length=lastword.Fixed(24), unmask=rule)
    narrow = 0
    before = 0
    for step in lastword.decode(model(family), [[5, 6, 7]], recipe):
        width, before = (int(step.cost.tokens_computed[0]) - before, int(step.cost.tokens_computed[0]))
        if width < 27:
            narrow += 1
            tokens = step.prediction.canvas.tokens[:, :width]
            alone = model(family)(tokens, step.prediction.columns.index)
            torch.testing.assert_close(alone, step.prediction.logits, atol=1e-4, rtol=1e-4)
    assert narrow


@pytest.mark.parametrize("rule", SLOW_FAST, ids=str)
def test_slow_fast_ends_although_a_hook_puts_masks_back(rule):
    def back(step, canvas):
        tokens = canvas.tokens.clone()
        if step in (4, 9):
            tokens[:, canvas.start : canvas.start + 2] = canvas.ids.mask
        return tokens

    recipe = lastword.Recipe(length=lastword.Fixed(16), unmask=rule)
    hooks = lastword.Hooks(tokens=back)
    *_, last = islice(lastword.decode(model("llada"), UNEQUAL, recipe, hooks=hooks), 60)
    assert not last.canvas.masked.any()


# Bounds of the rules that count by themselves, on any logits


def numbers(low, high):
    return st.floats(low, high, allow_nan=False, width=32)


logits = st.integers(2, 12).flatmap(
    lambda slots: st.lists(st.lists(numbers(-12, 12), min_size=8, max_size=8), min_size=slots, max_size=slots)
)


def chosen(rule, prediction):
    """The slots a rule chooses in a first pass over one row."""
    canvas = prediction.canvas
    clock, open_masks = (Clock.start(canvas).tick(canvas, None), prediction.columns.gather(canvas.masked))
    slots, _ = rule.choose(prediction, open_masks, clock, rule.initial_state(canvas))
    return set(slots[0].nonzero()[:, 0].tolist())


@given(rows=logits, low=numbers(0.0625, 1), high=numbers(0.0625, 1))
def test_a_lower_threshold_fills_at_least_as_much(predicted, rows, low, high):
    low, high = sorted((low, high))
    prediction = predicted(torch.tensor(rows))
    less, more = (chosen(lastword.AboveThreshold(bar), prediction) for bar in (high, low))
    assert less
    assert less <= more
    forced = {max(range(len(rows)), key=lambda slot: prediction.confidence[0, slot])}
    assert all(prediction.confidence[0, slot] >= high for slot in less - forced)


@given(rows=logits, factor=numbers(0.0625, 4))
def test_factor_fills_the_longest_prefix_over_its_rising_bar(predicted, rows, factor):
    prediction = predicted(torch.tensor(rows))
    ordered = prediction.confidence[0].sort(descending=True).values.tolist()
    bars = [1 - factor / (n + 1) for n in range(1, len(rows) + 1)]
    fits = [c >= bar for c, bar in zip(ordered, bars)]
    count = max(1, fits.index(False) if False in fits else len(fits))
    if all(abs(c - bar) > 1e-6 for c, bar in zip(ordered, bars)):
        assert len(chosen(lastword.Factor(factor), prediction)) == count


@given(rows=logits, gamma=numbers(0, 6), order=st.sampled_from(["entropy", "confidence", "margin"]))
def test_entropy_bound_keeps_its_bound_and_stops_no_sooner(predicted, rows, gamma, order):
    prediction = predicted(torch.tensor(rows))
    entropy = prediction.entropy[0].clamp(min=0).double()
    surest = {"entropy": -prediction.entropy, "confidence": prediction.confidence}.get(order, prediction.margin)[0]
    picked = chosen(lastword.EntropyBound(gamma, order), prediction)
    assert picked

    def spent(slots):
        values = entropy[sorted(slots)]
        return float(values.sum() - values.max())

    assert len(picked) == 1 or spent(picked) <= gamma + 1e-5
    rest = [slot for slot in range(len(rows)) if slot not in picked]
    if rest:
        following = max(rest, key=lambda slot: (float(surest[slot]), -slot))
        assert spent({*picked, following}) > gamma - 1e-5
        assert min(float(surest[slot]) for slot in picked) >= float(surest[following])


@given(rows=logits, one=numbers(0, 6), other=numbers(0, 6))
def test_a_larger_gamma_fills_at_least_as_much(predicted, rows, one, other):
    prediction = predicted(torch.tensor(rows))
    less, more = (chosen(lastword.EntropyBound(gamma), prediction) for gamma in sorted((one, other)))
    assert less <= more


# The slowest setting of every rule is one token a pass


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize(
    ("rule", "greedy"),
    [
        (lastword.AboveThreshold(1.0), lastword.MostConfident()),
        (lastword.Factor(1e-6), lastword.MostConfident()),
        (lastword.EntropyBound(0.0), lastword.LowestEntropy()),
        (lastword.EntropyBound(0.0, order="margin"), lastword.LargestMargin()),
    ],
    ids=str,
)
def test_the_strictest_setting_is_one_token_a_pass(family, block, rule, greedy):
    slow, plain = (lastword.Recipe(lastword.Fixed(11), one, block=block) for one in (rule, greedy))
    ours, theirs = canvases(family, slow), canvases(family, plain)
    assert len(ours) == len(theirs) == 11
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_a_threshold_of_one_is_one_token_a_pass_where_float32_calls_all_certain():
    """Trained models are a ten-millionth short of certain of end tokens; that is not certain."""

    def nearly_certain(tokens):
        scores = torch.zeros(*tokens.shape, 8)
        scores[..., 3] = 20.0
        return scores

    recipe = lastword.Recipe(lastword.Fixed(9), lastword.AboveThreshold(1.0))
    steps = list(lastword.decode(adapted(nearly_certain), [[0, 1]], recipe))
    assert steps[0].prediction.confidence.max() == 1
    assert len(steps) == 9


# The mask is no token


def adapted(forward):
    return lastword.Adapter(forward, lastword.TokenIds(mask=6, end=7, pad=7, vocab_size=8))


def test_a_model_that_proposes_the_mask_gets_its_next_best_token():
    def says_mask(tokens):
        scores = torch.zeros(*tokens.shape, 8)
        scores[..., 6], scores[..., 3] = 5.0, 1.0
        return scores

    insists, length = adapted(says_mask), lastword.Fixed(9)
    for rule in [*RULES, *SLOW_FAST]:
        answer = lastword.generate(insists, [0, 1], length=length, unmask=rule, block=4)
        assert 6 not in answer.canvas, rule


def test_where_the_mask_may_be_proposed_a_rule_ends_by_its_schedule_or_is_refused():
    def every_third(tokens):
        scores = torch.zeros(*tokens.shape, 8)
        scores[..., 3] = 1.0
        scores[:, ::3, 6] = 5.0
        return scores

    saying_mask, sampling = adapted(every_third), lastword.Sampling(propose_mask=True)
    for rule in [*RULES, *SLOW_FAST]:
        if not rule.traits.follows_schedule:
            with pytest.raises(lastword.LastwordError, match="forever"):
                lastword.Recipe(unmask=rule, sampling=sampling)
            continue
        recipe = lastword.Recipe(lastword.Fixed(9), rule, block=4, sampling=sampling)
        passes = islice(lastword.decode(saying_mask, [[0, 1]], recipe), 60)
        assert sum(1 for _ in passes) < 60, rule
