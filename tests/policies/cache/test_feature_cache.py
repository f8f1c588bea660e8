from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch

import lastword
from lastword.canvas.canvas import Canvas, Clock
from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, Plan
from tests.golden.cases import model

UNEQUAL = [[293, 170, 195, 181, 26, 70, 351, 346, 298], [7], [1, 251, 110, 248, 72]]
HORIZONS = (8, 3, 14)
FAMILIES = ["llada", "dream"]
EXACT = [lastword.FeatureCache(1, 1), lastword.FeatureCache(1, 1, 0.0), lastword.FeatureCache(1, 100, 1.0)]


@dataclass(frozen=True)
class Given(LengthPolicy):
    """Horizons by row. A row of 8 slots whose first block is full gets `more` masks at a place."""

    horizons: tuple[int, ...]
    more: int = 0
    at: int = 8

    def plan(self, probe):
        return Plan(torch.tensor(self.horizons))

    def revise(self, canvas, prediction, clock, state):
        first = canvas.masked & clock.window.columns(canvas.width)
        for row in range(len(canvas.horizon)):
            if self.more and canvas.horizon[row] == 8 and not first[row].any():
                canvas = with_masks(canvas, row, canvas.start + self.at, self.more)
        return canvas, state


def with_masks(canvas, row, place, count):
    """The canvas with `count` masks inserted into one row."""
    widened = torch.nn.functional.pad(canvas.tokens, (0, count), value=canvas.ids.pad)
    old = widened[row].clone()
    end = canvas.start + int(canvas.horizon[row])
    widened[row, place : place + count] = canvas.ids.mask
    widened[row, place + count : end + count] = old[place:end]
    horizon = canvas.horizon.clone()
    horizon[row] += count
    given_up = torch.nn.functional.pad(canvas.abandoned, (0, count))
    return replace(
        canvas, tokens=widened, spans=replace(canvas.spans, horizon=horizon, width=widened.shape[1]), abandoned=given_up
    )


def run(family, cache, prompts=UNEQUAL, length=Given(HORIZONS), block=4):
    recipe = lastword.Recipe(length=length, unmask=lastword.AboveThreshold(0.25), cache=cache, block=block)
    return list(lastword.decode(model(family), prompts, recipe))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", EXACT, ids=str)
def test_refreshing_everything_equals_no_cache(family, cache):
    """To rounding: rows end apart here, and each that ends narrows a pass without memory.

    Bit for bit where they end together: test_caches.py.
    """
    plain, cached = run(family, lastword.NoCache()), run(family, cache)
    for a, b in zip(plain, cached, strict=True):
        assert torch.equal(a.prediction.columns.index, b.prediction.columns.index)
        assert torch.equal(a.prediction.columns.read, b.prediction.columns.read)
        assert torch.equal(a.canvas.tokens, b.canvas.tokens)
        torch.testing.assert_close(a.prediction.logits, b.prediction.logits, atol=1e-4, rtol=0)
    assert torch.equal(plain[-1].cost.tokens_computed, cached[-1].cost.tokens_computed)


@contextmanager
def rounding_otherwise(network, seed):
    """Every product a ten-millionth off, as on another machine or in a batch of another shape."""
    dice = torch.Generator().manual_seed(seed)

    def off(layer, given, said):
        return said * (1 + 1e-7 * torch.randn(said.shape, generator=dice))

    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
    handles = [layer.register_forward_hook(off) for layer in layers]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_recomputed_does_not_hang_on_rounding(family):
    """CoinFlip lets passes go by in which nothing is written, so that no value turns.

    Whichever columns are recomputed then hear of what was written before: logits tell.
    """
    recipe = lastword.Recipe(
        length=lastword.Fixed(14),
        unmask=lastword.CoinFlip(lastword.Timesteps(0.5)),
        cache=lastword.FeatureCache(100, 100, 0.5),
    )
    runs = []
    for seed in (1, 2):
        with rounding_otherwise(model(family).network, seed):
            runs.append(list(lastword.decode(model(family), [UNEQUAL[0]], recipe)))
    written = [int(step.chosen.sum()) for step in runs[0]]
    assert any(written[n] and not written[n + 1] for n in range(1, len(written) - 2))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a.prediction.logits, b.prediction.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_does_cache(family):
    """Otherwise every law above would hold for nothing."""
    cached = run(family, lastword.FeatureCache(100, 100, 0.25))
    plain = run(family, lastword.NoCache())
    assert cached[-1].cost.tokens_computed.sum() < plain[-1].cost.tokens_computed.sum()
    differences = [
        (a.prediction.logits - b.prediction.logits).abs().max() for a, b in zip(plain[:2], cached[:2], strict=True)
    ]
    assert differences[0] < 1e-4  # all is computed in a first pass, which is padded instead of packed
    assert differences[1] > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at", [8, 2])
def test_an_answer_that_moved_is_recomputed(family, at):
    """The answer is due once, the prompt always: after a resize every column must be fresh."""
    resized = run(family, lastword.FeatureCache(1, 100, 0.0), [UNEQUAL[0]], Given((8,), 6, at))
    (after,) = [n for n in range(1, len(resized)) if resized[n - 1].canvas.horizon[0] == 14][:1]
    canvas = resized[after - 1].canvas  # what that pass saw
    columns = resized[after].prediction.columns.index
    fresh = model(family)(canvas.tokens, columns)
    torch.testing.assert_close(resized[after].prediction.logits, fresh, atol=1e-4, rtol=0)
    later = resized[after].canvas
    stale = model(family)(later.tokens, resized[after + 1].prediction.columns.index)
    assert (resized[after + 1].prediction.logits - stale).abs().max() > 1e-3


def test_a_resize_keeps_the_prompt():
    steps = run("llada", lastword.FeatureCache(100, 100, 0.0), [UNEQUAL[0]], Given((8,), 6))
    columns = [int(step.cost.tokens_computed) for step in steps]
    spent = [b - a for a, b in zip([0, *columns], columns)]
    after = next(n for n in range(1, len(steps)) if steps[n - 1].canvas.horizon[0] == 14)
    prompt = len(UNEQUAL[0])
    assert spent[0] == prompt + 8
    assert spent[1] == -(-(prompt + 8) // 3)  # the first of three layers
    assert spent[after] == -(-(prompt + 14 + 2 * 14) // 3)


def test_a_written_token_that_changed_is_recomputed():
    """A hook may rewrite what a memory has seen; the canvas keeps its length."""

    def rewrite(step, canvas):
        tokens = canvas.tokens.clone()
        if step == 2:
            written = (canvas.answer & ~canvas.masked)[0].nonzero()[0, 0]
            tokens[0, written] = (tokens[0, written] + 1) % 300
        return tokens

    recipe = lastword.Recipe(length=lastword.Fixed(8), cache=lastword.FeatureCache(1, 100, 0.0))
    hooks = lastword.Hooks(tokens=rewrite)
    steps = list(lastword.decode(model("llada"), [[5, 6]], recipe, hooks=hooks))
    fresh = model("llada")(steps[2].canvas.tokens, steps[3].prediction.columns.index)
    torch.testing.assert_close(steps[3].prediction.logits, fresh, atol=1e-4, rtol=0)


def test_what_is_due_when(ids):
    canvas = Canvas.blank([[1, 2], [3]], torch.tensor([2, 3]), ids)
    cache, clock, due = lastword.FeatureCache(3, 2), Clock.start(canvas), []
    for _ in range(7):
        clock = clock.tick(canvas, None)
        stale = cache.stale(canvas, clock)
        prompt, answer = canvas.valid & ~canvas.answer, canvas.answer
        assert bool((stale & prompt).any()) == bool((stale >= prompt).all())
        due.append((bool((stale & prompt).any()), bool((stale & answer).any())))
        assert not (stale & ~canvas.valid).any()
    assert [n for n, (prompt, _) in enumerate(due) if prompt] == [0, 3, 6]
    assert [n for n, (_, answer) in enumerate(due) if answer] == [0, 2, 4, 6]


def test_impossible_settings_are_refused(in_plain_python):
    wrong = "0, 1", "1, 0", "1.5, 1", "1, 1, -0.1", "1, 1, 1.1", "1, 1, float('nan')", "True, 1"
    outcome = in_plain_python([f"lastword.FeatureCache({settings})" for settings in wrong])
    assert len(outcome) == len(wrong)
    assert set(outcome.values()) == {"SettingError"}, outcome


def test_a_model_that_is_a_function_refuses(llada):
    adapted = lastword.Adapter(lambda tokens: llada(tokens, torch.arange(5)[None]), llada.ids)
    recipe = lastword.Recipe(length=lastword.Fixed(3), cache=lastword.FeatureCache())
    with pytest.raises(SettingError, match=r"layers.*NoCache"):
        next(lastword.decode(adapted, [[1, 2]], recipe))
