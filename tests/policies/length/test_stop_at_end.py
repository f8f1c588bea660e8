from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import lastword
from lastword import Adapter, Auto, Fixed, GrowWhenFull, StopAtEnd, Survival, TokenIds
from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Columns
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError
from lastword.policies.length.wrappers import Wrapper
from lastword.tasks import BENCHMARKS, load_frozen

IDS = TokenIds(mask=6, end=7, pad=7, vocab_size=8)
PROMPT = 2


def saying(*words, surest="last"):
    """A model that writes the given words, the last one (or the first) surest."""

    def forward(tokens):
        said = torch.tensor([0] * PROMPT + list(words))[: tokens.shape[1]]
        ends = (5, 9) if surest == "last" else (9, 5)
        sureness = torch.linspace(*ends, len(said))[:, None]
        logits = sureness * torch.nn.functional.one_hot(said, 8).float()
        return logits.expand(len(tokens), -1, -1)

    return Adapter(forward, IDS)


WORDS = (1, 2, 3, 7, 4, 5, 4, 5)


def writing(model, **choices):
    """What it answers, one token a pass."""
    return lastword.generate(model, [1, 1], unmask=lastword.MostConfident(), **choices)


def test_a_complete_block_with_an_end_token_ends_the_row():
    model = saying(*WORDS)
    full = writing(model, length=Fixed(8), block=2)
    stopped = writing(model, length=StopAtEnd(Fixed(8)), block=2)
    assert full.tokens == stopped.tokens == [1, 2, 3]
    assert stopped.canvas == [1, 2, 3, 7]
    assert (full.cost.forward_passes, stopped.cost.forward_passes) == (8, 4)
    assert stopped.horizon == 8  # what was planned
    assert stopped.finish is lastword.Finish.ENDED


def test_an_end_token_alone_does_not_stop_an_unfinished_block():
    # Inside the block of four the end token comes first; the words to its left must still be written.
    stopped = writing(saying(*WORDS), length=StopAtEnd(Fixed(8)), block=4)
    assert stopped.tokens == [1, 2, 3]
    assert stopped.cost.forward_passes == 4


def test_what_lies_behind_the_end_in_its_own_block_is_not_written():
    # Of the block 3, 7, 4, 5 the last slots are filled first, then the end, then the 3 before it.
    stopped = writing(saying(1, 2, *WORDS[2:]), length=StopAtEnd(Fixed(8)))
    assert (stopped.canvas, stopped.cost.forward_passes) == ([1, 2, 3, 7], 8)
    # From left to right the row is done with its end token, wherever the block ends.
    leftwards = saying(*WORDS, surest="first")
    for block, wrote in ((8, 4), (6, 4), (2, 4)):
        stopped = writing(leftwards, length=StopAtEnd(Fixed(8)), block=block)
        assert (stopped.canvas, stopped.cost.forward_passes) == ([1, 2, 3, 7], wrote)
        assert stopped.finish is lastword.Finish.ENDED


def test_a_suffix_of_given_ends_is_no_end_of_the_model_s_own():
    canvas = Canvas.blank([[1, 1]], torch.tensor([3]), IDS).append_suffix(7, torch.tensor([2]))
    words = torch.tensor([[0, 0, 1, 2, 3, 0, 0]])
    columns = torch.arange(7)[None]
    two, full = (canvas.write(columns < last, words) for last in (4, 5))
    assert [revised(one).answer_ids(0) for one in (two, full)] == [[1, 2, 6, 7, 7], [1, 2, 3, 7, 7]]
    ended = canvas.write(columns < 4, torch.full((1, 7), 7))
    assert revised(ended).answer_ids(0) == [7]
    assert revised(ended).suffix.tolist() == [0]


def test_masks_that_were_given_up_are_not_waited_for():
    """A model that may propose the mask token can refuse a slot before its end for ever."""
    canvas = Canvas.blank([[1, 1]], torch.tensor([4]), IDS)
    canvas = canvas.write(torch.tensor([[False] * 3 + [True] * 2 + [False]]), torch.full((1, 6), 7))
    assert revised(canvas).answer_ids(0) == [6, 7, 7, 6]  # the first slot may still be written
    first = torch.tensor([[False, False, True, False, False, False]])
    given_up = canvas.abandon(first, first)
    assert revised(given_up).answer_ids(0) == [6, 7]


def revised(canvas):
    clock = Clock.start(canvas).tick(canvas, 32)
    prediction = Prediction.from_logits(
        torch.zeros(1, canvas.width, 8), Columns.from_mask(canvas.valid), canvas, Sampling(), RowGenerators([0])
    )
    return StopAtEnd(Fixed(4)).revise(canvas, prediction, clock, ())[0]


@dataclass(frozen=True)
class StopAtBlockEnd(Wrapper):
    """What others do: a block that is complete and holds an end token is the row's last."""

    traits = StopAtEnd.traits

    def revise(self, canvas, prediction, clock, state):
        canvas, state = super().revise(canvas, prediction, clock, state)
        block = clock.window.columns(canvas.width) & canvas.answer
        done = ~(block & canvas.masked).any(-1) & (block & canvas.ended).any(-1)
        horizon = torch.where(done, clock.window.last - canvas.start, canvas.horizon)
        return canvas.crop(horizon), state


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "choices"),
    [
        *((name, {"unmask": lastword.AboveThreshold(0.9)}) for name in EMBEDDED),
        *(
            (name, {"unmask": lastword.EntropyBound(0.1), "cache": lastword.DualCache()})
            for name in EMBEDDED
            if name.endswith("base")
        ),
    ],
    ids=str,
)
def test_texts_are_those_of_stopping_at_the_block_s_end_for_fewer_passes(name, choices):
    """Two prompts of each family, the default length around either rule."""
    model = lastword.load(name, device="cpu")
    prompts = [e.prompt for family in BENCHMARKS for e in load_frozen("validation", family)[:2]]
    if name.endswith("instruct"):
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    inner = GrowWhenFull(Survival(256, interpretation=Auto()), limit=256)
    ours, theirs = (
        lastword.generate(model, prompts, length=stop(inner), **choices) for stop in (StopAtEnd, StopAtBlockEnd)
    )
    for mine, other in zip(ours, theirs):
        assert (mine.text, mine.finish) == (other.text, other.finish)
        assert mine.cost.forward_passes <= other.cost.forward_passes
        assert mine.cost.tokens_computed <= other.cost.tokens_computed
        assert mine.canvas == other.canvas[: len(mine.canvas)]
    passes, before = (sum(answer.cost.forward_passes for answer in arm) for arm in (ours, theirs))
    # Behind its end a base model writes on, word by word; an instruct model is sure of ends there.
    assert passes < (0.8 if name.endswith("base") else 1.0) * before


def test_the_prompt_s_own_end_tokens_do_not_count():
    stopped = lastword.generate(saying(1, 2, 3, 4), [7, 7], length=StopAtEnd(Fixed(4)), block=2)
    assert stopped.tokens == [1, 2, 3, 4]


def test_it_wraps_length_policies_only():
    wrong: object = "fixed"
    with pytest.raises((SettingError, TypeError)):
        StopAtEnd(wrong)


def test_the_cut_part_is_padding(llada):
    canvas = Canvas.blank([[1, 2]], torch.tensor([4]), llada.ids)
    cropped = canvas.crop(torch.tensor([2]))
    assert cropped.answer_ids(0) == [llada.ids.mask] * 2
    assert not (cropped.masked & ~cropped.answer).any()
    assert canvas.crop(torch.tensor([9])).horizon.tolist() == [4]
