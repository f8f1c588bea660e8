"""Static shapes: same tokens and costs as dynamic shapes; waiting rows do not change; errors are raised."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch

import lastword
from lastword.canvas.canvas import tree_tensors
from lastword.decoding import static_shapes as scheduling
from lastword.decoding.static_shapes import PhaseScheduler
from lastword.decoding.step import DYNAMIC, CanvasLayout, Phase, Stepper, supports_static_shapes
from lastword.errors import CapacityError, NumericError, SettingError
from lastword.policies.length.policy import LengthPolicy, LengthTraits, Plan
from lastword.policies.unmask.rule import UnmaskRule
from tests.decoding.decoded import PROMPTS, answers, static_shapes
from tests.laws.axes import tiny

CPU = torch.device("cpu")
DUAL = lastword.DualCache()
FIXED = lastword.Recipe(length=lastword.Fixed(11), unmask=lastword.EntropyBound(1.0), cache=DUAL, block=4)
GROWS = lastword.GrowWhenFull(lastword.Survival(limit=12), increment=3, limit=20)
RULES = [
    lastword.MostConfident(),
    lastword.MostConfident(lastword.EqualShares(2.5)),
    lastword.LowestEntropy(lastword.Timesteps(1.5)),
    lastword.LargestMargin(lastword.Timesteps(0.7, keep_idle=True)),
    lastword.MostConfident(order_temperature=0.5),
    lastword.EntropyBound(1.0),
    lastword.AboveThreshold(0.3, max_tokens_per_step=1.5),
    lastword.LeftmostFirst(lastword.AboveThreshold(0.3)),
    lastword.Factor(),
    lastword.LocalLeap(0.3, relaxed_threshold=0.2, radius=1),
    lastword.AtRandom(),
    lastword.CoinFlip(),
    lastword.MaskGit(),
]
LENGTHS = [
    lastword.Fixed(13),  # a short last block
    lastword.Survival(limit=14),
    lastword.StopAtEnd(lastword.Fixed(14)),
    GROWS,
    lastword.StopAtEnd(GROWS),
    lastword.Budget(GROWS, max_passes=9),
]


def in_both(model, recipe, **settings):
    """Return the answers in static and in dynamic shapes."""
    with static_shapes():
        assert supports_static_shapes(CPU, recipe, lastword.Hooks(), 16)
        static = answers(model, recipe, **settings)
    return static, answers(model, recipe, **settings)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_writes_the_same(rule):
    model = tiny(("llada-tiny", "dream-tiny")[RULES.index(rule) % 2])
    static, dynamic = in_both(model, replace(FIXED, unmask=rule), prompts=PROMPTS[:3], max_batch_size=2)
    assert static == dynamic


@pytest.mark.parametrize("name", ["llada-tiny-eos", "dream-tiny"])
@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_every_length_comes_out_the_same(length, name):
    for every, block in ((0, 4), (2, 1)) if name == "dream-tiny" else ((1, 5), (0, 64)):
        recipe = replace(FIXED, length=length, cache=lastword.DualCache(every), block=block)
        static, dynamic = in_both(tiny(name), recipe, prompts=PROMPTS[:4])
        assert static == dynamic


@pytest.mark.parametrize("sampling", ["forbid_end", "end_last", "propose_mask"])
def test_what_a_token_may_be_is_heeded(sampling):
    chosen = lastword.Sampling(**{sampling: True})
    recipe = replace(FIXED, sampling=chosen, unmask=lastword.MostConfident(lastword.EqualShares(2.0)))
    static, dynamic = in_both(tiny("llada-tiny-eos"), recipe)
    assert static == dynamic


def test_an_embedded_model_answers_the_same():
    """Real answers: they end, grow and stop."""
    model = lastword.load("tiny-llada-base", device="cpu")
    texts = ["Ann has 3 apples and buys 4 more. How many apples does Ann have?", "12+7=", "def f(x):"]
    prompts = [model.tokenizer.encode(text) for text in texts]
    length = lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=32), increment=8, limit=48))
    recipe = replace(FIXED, length=length, unmask=lastword.EntropyBound(0.5), block=16)
    static, dynamic = in_both(model, recipe, prompts=prompts)
    assert static == dynamic
    written = [len(canvas) for canvas, *_ in dynamic]
    assert any(count < horizon for count, (_, horizon, *_) in zip(written, dynamic))


# Rows that wait


class Count(NamedTuple):
    count: torch.Tensor


@dataclass(frozen=True)
class Counting(UnmaskRule):
    """One to three masks, by the length of the prompt; the state counts how often a row was asked."""

    def initial_state(self, canvas):
        return Count(torch.zeros_like(canvas.horizon))

    def choose(self, prediction, open, clock, state):
        count = prediction.canvas.prompt_length % 3 + 1
        return open & (open.cumsum(-1) <= count[:, None]), Count(state.count + 1)


@dataclass(frozen=True)
class Growing(LengthPolicy):
    """Rows of 6 to 10 slots; one that completes its first block gets another slot."""

    traits = LengthTraits(resizes="between blocks", grows=True, max_slots=11)

    def plan(self, probe):
        horizon = torch.arange(probe.num_rows) % 5 + 6
        return Plan(horizon, state=Count(torch.zeros(probe.num_rows, dtype=torch.long)))

    def revise(self, canvas, prediction, clock, state):
        complete = ~(canvas.masked & clock.window.columns(canvas.width)).any(-1)
        grows = complete & prediction.columns.participates & (clock.blocks_started == 1) & canvas.masked.any(-1)
        return canvas.extend(grows.long()), Count(state.count + 1)


def test_rows_that_wait_do_not_change(monkeypatch):
    waited = set()

    class Watched(PhaseScheduler):
        def __call__(self, state, phases, requests):
            after, details = super().__call__(state, phases, requests)
            passes = after.cost.forward_passes - state.cost.forward_passes
            for row, phase in enumerate(phases):
                if not passes[row]:
                    waited.add(phase)
                    for old, new in zip(tree_tensors(state), tree_tensors(after)):
                        assert torch.equal(old[row], new[row])
            return after, details

    monkeypatch.setattr("lastword.decoding.loop.PhaseScheduler", Watched)
    monkeypatch.setattr(scheduling, "BLOCK_START_SHARE", 1)  # so that with few rows block starts wait too
    rule = lastword.LeftmostFirst(Counting())
    recipe = replace(FIXED, length=Growing(), unmask=rule, block=3)
    static, dynamic = in_both(tiny("dream-tiny"), recipe)
    assert static == dynamic
    assert waited == {Phase.DONE, Phase.IN_BLOCK, Phase.BLOCK_START}


# Errors, which fixed shapes note and the host raises


class Broken:
    """A model that says NaN of some rows once it has been asked so often."""

    def __init__(self, model, rows, after=2):
        self._model, self._rows, self._left = model, rows, after

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __call__(self, tokens, read, **given):
        logits = self._model(tokens, read, **given)
        self._left -= 1
        if self._left < 0:
            logits[self._rows(tokens)] = torch.nan
        return logits


def test_a_row_of_nan_is_refused():
    broken = Broken(tiny("llada-tiny"), lambda tokens: 1)
    with static_shapes(), pytest.raises(NumericError, match="NaN or infinite"):
        answers(broken, FIXED)


def test_what_is_said_of_rows_that_are_done_does_not_matter():
    """They are computed all the same, where shapes are fixed."""
    model = tiny("llada-tiny")
    recipe = replace(FIXED, length=Growing(), block=3)
    broken = Broken(model, lambda tokens: ~(tokens == model.ids.mask).any(-1), after=0)
    with static_shapes():
        assert answers(broken, recipe) == answers(model, recipe)


class NeverAgain(UnmaskRule):
    """Fills one mask when a block opens, and then none."""

    def choose(self, prediction, open, clock, state):
        return open & (open.cumsum(-1) == 1) & clock.block_start[:, None], state


def test_a_rule_that_does_not_let_decoding_end_is_refused():
    recipe = replace(FIXED, unmask=NeverAgain())
    for enabled in (True, False):
        with static_shapes(enabled), pytest.raises(SettingError, match="NeverAgain chose no mask"):
            answers(tiny("llada-tiny"), recipe)


@dataclass(frozen=True)
class Understated(LengthPolicy):
    """Says that it has at most 8 slots, and plans or grows to more than a layout has room for."""

    plans: int
    grows: int

    traits = LengthTraits(resizes="between blocks", grows=True, max_slots=8)

    def plan(self, probe):
        return Plan(torch.full((probe.num_rows,), self.plans))

    def revise(self, canvas, prediction, clock, state):
        full = (~canvas.masked).all(-1) & (canvas.horizon == self.plans)
        return canvas.extend(torch.where(full, self.grows, 0)), state


@pytest.mark.parametrize(
    ("length", "rule"),
    [
        (Understated(40, 0), lastword.MostConfident()),
        (Understated(4, 40), lastword.AboveThreshold(1e-6)),  # grows where a block opens
        (Understated(4, 40), lastword.MostConfident(lastword.EqualShares(2.0))),  # within one
    ],
    ids=["plans", "grows when it opens", "grows within"],
)
def test_a_policy_is_held_to_the_limit_it_says(length, rule):
    recipe = replace(FIXED, length=length, unmask=rule)
    message = "Understated gave a row more slots than the 8 that its traits allow"
    with static_shapes(), pytest.raises(SettingError, match=message):
        answers(tiny("dream-tiny"), recipe, [[1, 2], [3]])


# A lone row without a cache


@pytest.mark.parametrize("length", LENGTHS, ids=repr)
@pytest.mark.parametrize("block", [None, 4])
def test_a_lone_row_without_a_cache_comes_out_the_same(length, block):
    name = ("llada-tiny", "dream-tiny")[(LENGTHS.index(length) + (block is None)) % 2]
    recipe = replace(FIXED, length=length, cache=lastword.NoCache(), block=block)
    for prompt in PROMPTS[:2]:
        with static_shapes(False):
            expected = answers(tiny(name), recipe, [prompt])
        with static_shapes():
            assert answers(tiny(name), recipe, [prompt]) == expected


@pytest.mark.parametrize("cache", [lastword.NoCache(), DUAL], ids=repr)
def test_a_lone_row_longer_than_the_model_is_refused(cache):
    model = tiny("llada-tiny")
    recipe = replace(FIXED, length=lastword.Fixed(model.max_seq_len), cache=cache)
    with static_shapes(), pytest.raises(CapacityError, match="exceeds the model's"):
        answers(model, recipe, [[1, 2]])


# What falls back


def test_which_recipes_fix_their_shapes():
    def fixes(device=CPU, hooks=lastword.Hooks(), **changed):
        return supports_static_shapes(device, replace(FIXED, **changed), hooks, 16)

    assert not fixes()  # a CPU does not care
    with static_shapes():
        assert fixes()
        assert fixes(length=lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Fixed(6), limit=9)))
        assert fixes(length=lastword.Budget(lastword.Survival(limit=9), max_passes=9))
        assert fixes(unmask=lastword.AtRandom())  # its draws are not captured, its shapes are fixed
        assert not fixes(torch.device("mps"))
        assert not fixes(hooks=lastword.Hooks(tokens=lambda step, canvas: canvas.tokens))
        assert not fixes(sampling=lastword.Sampling(guidance=0.5))
        assert not fixes(sampling=lastword.Sampling(temperature=0.5))
        assert not fixes(commit=lastword.Prophet())
        assert not fixes(unmask=lastword.SlowFast(), cache=lastword.NoCache())
        assert not fixes(length=lastword.RhoEos(initial=4, limit=9))  # resizes at any time
        assert not fixes(length=lastword.SurvivalAtStep(2, lastword.Survival(9)), cache=lastword.NoCache())
        assert not fixes(length=lastword.Survival())  # no limit was said
        assert not fixes(length=lastword.GrowWhenFull(lastword.Fixed(6)))
        for cache in (lastword.NoCache(), lastword.PrefixCache(), lastword.FeatureCache()):
            assert not fixes(cache=cache)
        lone = replace(FIXED, cache=lastword.NoCache())
        assert supports_static_shapes(CPU, lone, lastword.Hooks(), 1)  # all of a lone row, in every pass


def test_calls_that_are_alike_share_a_layout():
    assert CanvasLayout.static(FIXED, 200) == CanvasLayout.static(FIXED, 3)
    long = CanvasLayout.static(FIXED, 257)
    assert (long.start, long.width) == (512, 512 + 256)
    wide = CanvasLayout.static(replace(FIXED, length=lastword.Fixed(256)), 200)
    assert (wide.start, wide.width) == (256, 256 + 512)  # room for a block behind the answer


# All of all rows


@contextmanager
def packed(model):
    before, model.packs = model.packs, True
    try:
        yield model
    finally:
        model.packs = before


def in_both_packed(name, recipe, **settings):
    """Decoded in fixed shapes, every pass over all columns, and without."""
    recipe = replace(recipe, cache=lastword.NoCache())
    with packed(tiny(name)) as model:
        with static_shapes():
            assert supports_static_shapes(CPU, recipe, lastword.Hooks(), 3, packs_rows=True)
            static = answers(model, recipe, **settings)
        return static, answers(model, recipe, **settings)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_writes_the_same_without_a_cache(rule):
    name, block = (("llada-tiny", None), ("dream-tiny", 4))[RULES.index(rule) % 2]
    static, dynamic = in_both_packed(name, replace(FIXED, unmask=rule, block=block), max_batch_size=3)
    assert static == dynamic


@pytest.mark.parametrize("name", ["dream-tiny", pytest.param("llada-tiny-eos", marks=pytest.mark.full)])
@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_every_length_comes_out_the_same_without_a_cache(length, name):
    for block in (4, 64):
        recipe = replace(FIXED, length=length, block=block)
        static, dynamic = in_both_packed(name, recipe, prompts=PROMPTS[:4], max_batch_size=2)
        assert static == dynamic


def test_rows_of_similar_total_length_share_a_shape(monkeypatch):
    capacities = []
    real = Stepper.__call__

    def recorded(self, state, shape=DYNAMIC):
        capacities.append(shape.packed)
        return real(self, state, shape)

    monkeypatch.setattr(Stepper, "__call__", recorded)
    with packed(tiny("llada-tiny")) as model, static_shapes():
        answers(model, replace(FIXED, cache=lastword.NoCache()))
    assert len({*capacities}) < len(capacities) / 2
    assert capacities[0].tokens >= 6 * (11 + 1)
