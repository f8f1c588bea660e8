from __future__ import annotations

import pytest
import torch

import lastword
from lastword import (
    Adapter,
    Finish,
    Fixed,
    GrowWhenFull,
    Quantile,
    Reread,
    StopAtEnd,
    Survival,
    SurvivalAtStep,
    TokenIds,
)
from lastword.canvas.canvas import Clock
from lastword.errors import SettingError
from lastword.policies.length.policy import ModelLimits

IDS = TokenIds(mask=6, end=7, pad=7, vocab_size=8)
PROMPT = 2


def ending_at(slot):
    """A model that writes words, surest on the left, and the end token from `slot` on."""

    def forward(tokens):
        place = torch.arange(tokens.shape[1]) - PROMPT
        said = torch.where(place < slot, place.clamp(min=0) % 5, IDS.end)
        sureness = torch.linspace(9, 5, len(said))[:, None]
        logits = sureness * torch.nn.functional.one_hot(said, 8).float()
        return logits.expand(len(tokens), -1, -1)

    return Adapter(forward, IDS)


def answer(slot, length, block=None):
    one = lastword.MostConfident()
    return lastword.generate(ending_at(slot), [1, 1], length=length, unmask=one, block=block)


def horizons(slot, length, block):
    recipe = lastword.Recipe(length=length, unmask=lastword.MostConfident(), block=block)
    return [int(step.canvas.horizon[0]) for step in lastword.decode(ending_at(slot), [[1, 1]], recipe)]


WORDS = [place % 5 for place in range(20)]


@pytest.mark.parametrize("block", [None, 1, 2, 3, 4, 32])
def test_an_under_prediction_does_not_cost_the_answer(block):
    short = answer(10, Fixed(6), block)
    assert (short.finish, short.tokens) == (Finish.TRUNCATED, WORDS[:6])
    grown = answer(10, GrowWhenFull(Fixed(6), increment=2), block)
    assert (grown.finish, grown.tokens) == (Finish.ENDED, WORDS[:10])
    assert grown.horizon == 6  # what was planned


def test_it_grows_when_the_last_block_comes_up():
    """One token a pass: slots 0 and 1, then 2 and 3, and only one block of two is left."""
    assert horizons(7, GrowWhenFull(Fixed(6), increment=2), block=2) == [6, 6, 6, 8, 8, 10, 10, 10, 10, 10]


def test_a_short_last_block_is_the_last_block():
    assert horizons(9, GrowWhenFull(Fixed(5), increment=2), block=4)[:5] == [5, 5, 5, 7, 7]


def test_without_blocks_it_grows_when_every_slot_is_written():
    assert horizons(5, GrowWhenFull(Fixed(3), increment=4), block=None) == [3, 3, 7, 7, 7, 7, 7]


def test_an_answer_with_an_end_token_does_not_grow():
    assert set(horizons(3, GrowWhenFull(Fixed(6), increment=2), block=2)) == {6}
    assert set(horizons(5, GrowWhenFull(Fixed(6), increment=2), block=None)) == {6}


def test_an_answer_that_never_ends_stops_at_the_limit():
    endless = answer(99, GrowWhenFull(Fixed(4), increment=4, limit=11), block=2)
    assert (endless.finish, endless.tokens) == (Finish.TRUNCATED, WORDS[:11])


def test_a_plan_beyond_the_limit_stays_as_it_is():
    long = Survival(8, Quantile(0.99))  # planned row by row, so no recipe can know
    assert answer(99, GrowWhenFull(long, increment=4, limit=5), block=2).tokens == WORDS[:8]


def test_stop_at_end_drops_the_room_that_was_not_needed():
    roomy = answer(5, GrowWhenFull(Fixed(6), increment=4), block=2)
    stopped = answer(5, StopAtEnd(GrowWhenFull(Fixed(6), increment=4)), block=2)
    assert roomy.tokens == stopped.tokens == WORDS[:5]
    assert stopped.canvas == [*WORDS[:5], IDS.end]
    # The room was seen, not filled: as many passes as without growth.
    assert stopped.cost.forward_passes == answer(5, Fixed(6), block=2).cost.forward_passes == 6
    assert roomy.cost.forward_passes == 10


def test_the_order_of_the_wrappers_does_not_matter():
    inside = answer(8, GrowWhenFull(StopAtEnd(Fixed(6)), increment=4), block=2)
    outside = answer(8, StopAtEnd(GrowWhenFull(Fixed(6), increment=4)), block=2)
    assert inside.canvas == outside.canvas
    assert inside.cost == outside.cost


def test_an_end_token_of_the_prompt_does_not_count():
    grown = lastword.generate(ending_at(10), [7, 7], length=GrowWhenFull(Fixed(6), increment=2), block=2)
    assert grown.tokens == WORDS[:10]


def test_blocks_that_were_not_given_are_those_of_32():
    length = StopAtEnd(Fixed(70))
    alone, given = (answer(9, length, block) for block in (None, 32))
    assert (alone.canvas, alone.cost) == (given.canvas, given.cost)
    assert alone.recipe.block == 32
    assert len(alone.canvas) == alone.cost.forward_passes == 10  # nine words and the end
    assert answer(9, Fixed(70)).cost.forward_passes == 70  # no policy that acts between blocks, no blocks


@pytest.mark.parametrize("slot", [3, 40, 75])
def test_generate_without_a_choice_finishes_the_answer_and_says_how_it_read_the_probe(slot):
    done = lastword.generate(ending_at(slot), [1, 1])
    assert (done.finish, done.tokens) == (Finish.ENDED, [place % 5 for place in range(slot)])
    assert done.lengths.explanation is not None
    paper = lastword.generate(ending_at(slot), [1, 1], length="survival")
    assert paper.lengths.explanation is None


def test_without_a_limit_it_has_that_of_the_policy_inside_or_the_model_s():
    for policy, most in (
        (GrowWhenFull(Survival(48)), 48),
        (GrowWhenFull(StopAtEnd(Survival(48))), 48),
        (GrowWhenFull(Survival(48), limit=96), 96),
        (GrowWhenFull(Reread(Survival(48))), 48),
        (GrowWhenFull(SurvivalAtStep(3, Survival(48))), 48),
        (GrowWhenFull(Fixed(48)), 512),
        (GrowWhenFull(Survival()), 512),
    ):
        assert policy.resolved(ModelLimits(512)).limit == most, policy


def test_growth_to_a_limit_nobody_said_is_refused(predicted, sure):
    prediction = predicted(sure(0.9))
    clock = Clock.start(prediction.canvas).tick(prediction.canvas, None)
    with pytest.raises(SettingError, match="before it was resolved for a model"):
        GrowWhenFull(Fixed(1)).revise(prediction.canvas, prediction, clock, ())
