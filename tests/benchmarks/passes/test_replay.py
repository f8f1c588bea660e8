"""Tests of replayed lengths: they are those of the records, and rows end at them."""

from dataclasses import replace

import pytest
import torch

import lastword
from benchmarks.arms import recipe_of
from benchmarks.kept import answers_of
from benchmarks.passes.replay import Lengths, Replay, kept_pairs, lengths_for
from benchmarks.passes.shapes import TINY, random_model
from lastword.canvas.canvas import Canvas, Clock, tree_to
from lastword.decoding.forward import Hooks
from lastword.decoding.step import CanvasLayout, supports_static_shapes
from lastword.errors import SettingError
from lastword.policies.cache import DualCache
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares

MODEL = "tiny-llada-base"


def test_the_pairs_are_those_of_the_records():
    written = {(a.task, a.index): a.length for a in answers_of(MODEL, recipe_of("fixed 256"))}
    plans = answers_of(MODEL, recipe_of("auto, grow, stop"))
    pairs = [[a.horizon, written[a.task, a.index]] for a in plans]
    assert kept_pairs().pairs == [pairs[at * len(pairs) // 64] for at in range(64)]
    assert MODEL in kept_pairs().source


def test_lengths_are_scaled_to_the_mean_number_of_slots():
    lengths = lengths_for(16, 256)
    assert sum(row.predicted for row in lengths) / 16 == pytest.approx(256, abs=1)
    assert len({row.predicted for row in lengths}) > 10
    assert any(row.written > row.predicted for row in lengths)
    with pytest.raises(SettingError, match="64 pairs"):
        lengths_for(65, 256)


def test_a_row_ends_with_the_block_in_which_it_reaches_its_written_length():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    prompts = [[3] * length for length in (5, 9, 7)]
    lengths = [Lengths(40, 10), Lengths(20, 30), Lengths(33, 33)]
    assert [row.useful for row in lengths] == [10, 20, 33]
    recipe = lastword.Recipe(length=Replay.of(prompts, lengths), block=8)
    answers = lastword.generate(model, prompts, recipe=recipe)
    assert [answer.horizon for answer in answers] == [40, 20, 33]
    assert [len(answer.canvas) for answer in answers] == [16, 20, 33]
    # A row does not depend on the other rows of its batch.
    for row in (2, 0):
        (solo,) = lastword.generate(model, [prompts[row]], recipe=recipe)
        assert solo.canvas == answers[row].canvas
        assert solo.cost == answers[row].cost


PROMPTS = [[3] * length for length in (5, 9, 7)]
LENGTHS = [Lengths(40, 10), Lengths(20, 30), Lengths(33, 33)]
CACHED = lastword.Recipe(
    length=Replay.of(PROMPTS, LENGTHS), unmask=MostConfident(EqualShares(3.0)), cache=DualCache(), block=8
)


def test_passes_of_replayed_rows_have_static_shapes():
    assert supports_static_shapes(torch.device("cuda"), CACHED, Hooks(), 16)
    assert CanvasLayout.static(CACHED, max(map(len, PROMPTS))).width == 512


def test_a_revision_does_not_synchronize_with_the_device():
    """Reading a value of a tensor on the meta device is an error."""
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    canvas = Canvas.blank(PROMPTS, torch.tensor([40, 20, 33]), model.ids)
    clock = Clock.start(canvas).tick(canvas, 8)
    state = (torch.tensor([10, 30, 33]),)
    canvas, clock, state = (tree_to(part, torch.device("meta")) for part in (canvas, clock, state))
    with pytest.raises(RuntimeError, match="meta"):
        bool(canvas.horizon.any())
    prediction = next(lastword.decode(model, PROMPTS, CACHED)).prediction  # unused
    revised, new_state = CACHED.length.revise(replace(canvas, static=True), prediction, clock, state)
    assert revised.horizon.device.type == "meta"
    assert new_state is state


def test_static_shapes_give_the_same_rows(monkeypatch):
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    dynamic = lastword.generate(model, PROMPTS, recipe=CACHED)
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    static = lastword.generate(model, PROMPTS, recipe=CACHED, max_batch_size=2)
    assert [answer.canvas for answer in static] == [answer.canvas for answer in dynamic]
    assert [answer.cost for answer in static] == [answer.cost for answer in dynamic]


def test_prompts_of_equal_length_are_rejected():
    with pytest.raises(SettingError, match="2 prompts of 1 lengths"):
        Replay.of([[1, 2], [3, 4]], LENGTHS[:2])
