from __future__ import annotations

import pytest
import torch

import lastword
from lastword import Adapter, Fixed, StopAtEnd, TokenIds
from lastword.canvas.canvas import Canvas
from lastword.errors import SettingError

IDS = TokenIds(mask=6, end=7, pad=7, vocabulary=8)
PROMPT = 2


def saying(*words):
    """A model that writes the given words, the last one surest."""

    def forward(tokens):
        said = torch.tensor([0] * PROMPT + list(words))[: tokens.shape[1]]
        sureness = torch.linspace(5, 9, len(said))[:, None]
        logits = sureness * torch.nn.functional.one_hot(said, 8).float()
        return logits.expand(len(tokens), -1, -1)

    return Adapter(forward, IDS)


WORDS = (1, 2, 3, 7, 4, 5, 4, 5)


def test_a_complete_block_with_an_end_token_ends_the_row():
    model = saying(*WORDS)
    full = lastword.generate(model, [1, 1], length=Fixed(8), block=2)
    stopped = lastword.generate(model, [1, 1], length=StopAtEnd(Fixed(8)), block=2)
    assert full.tokens == stopped.tokens == [1, 2, 3]
    assert stopped.canvas == [1, 2, 3, 7]
    assert (full.cost.passes, stopped.cost.passes) == (8, 4)
    assert stopped.horizon == 8  # what was planned
    assert stopped.finish is lastword.Finish.ENDED


def test_an_end_token_alone_does_not_stop_an_unfinished_block():
    # Inside the block of four the end token comes first; the words to its left must still be written.
    stopped = lastword.generate(saying(*WORDS), [1, 1], length=StopAtEnd(Fixed(8)), block=4)
    assert stopped.tokens == [1, 2, 3]
    assert stopped.cost.passes == 4


def test_with_one_block_it_changes_nothing():
    model = saying(*WORDS)
    stopped = lastword.generate(model, [1, 1], length=StopAtEnd(Fixed(8)), block=8)
    assert stopped.canvas == lastword.generate(model, [1, 1], length=Fixed(8)).canvas


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
    assert cropped.answer_of(0) == [llada.ids.mask] * 2
    assert not (cropped.masked & ~cropped.answer).any()
    assert canvas.crop(torch.tensor([9])).horizon.tolist() == [4]
