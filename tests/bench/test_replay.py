"""Replayed lengths are those of the records, and rows end where they say."""

import pytest
import torch

import lastword
from benchmarks.arms import recipe_of
from benchmarks.pages import answers_of
from lastword.bench.replay import Lengths, Replay, kept_pairs, lengths_for
from lastword.bench.shapes import TINY, random_model
from lastword.errors import SettingError

MODEL = "tiny-llada-base"


def test_the_pairs_are_those_of_the_records():
    written = {(a.task, a.index): a.length for a in answers_of(MODEL, recipe_of("fixed 256"))}
    plans = answers_of(MODEL, recipe_of("auto, grow, stop"))
    pairs = [[a.horizon, written[a.task, a.index]] for a in plans]
    kept = kept_pairs()
    assert kept.pairs == [pairs[at * len(pairs) // 64] for at in range(64)]
    assert MODEL in kept.source


def test_lengths_are_scaled_to_the_slots_asked_for():
    lengths = lengths_for(16, 256)
    assert sum(row.predicted for row in lengths) / 16 == pytest.approx(256, abs=1)
    assert len({row.predicted for row in lengths}) > 10
    assert any(row.written > row.predicted for row in lengths)
    with pytest.raises(SettingError, match="64 pairs"):
        lengths_for(65, 256)


def test_a_row_ends_with_the_block_in_which_it_wrote_its_length():
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    prompts = [[3] * length for length in (5, 9, 7)]
    lengths = [Lengths(40, 10), Lengths(20, 30), Lengths(33, 33)]
    assert [row.useful for row in lengths] == [10, 20, 33]
    recipe = lastword.Recipe(length=Replay.of(prompts, lengths), block=8)
    answers = lastword.generate(model, prompts, recipe=recipe)
    assert [answer.horizon for answer in answers] == [40, 20, 33]
    assert [len(answer.canvas) for answer in answers] == [16, 20, 33]
    # Planned alone or in another order, a row is the same row.
    for row in (2, 0):
        (alone,) = lastword.generate(model, [prompts[row]], recipe=recipe)
        assert alone.canvas == answers[row].canvas
        assert alone.cost == answers[row].cost
