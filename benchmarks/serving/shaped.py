"""Shaped: requests for a model of a real shape with random weights, which end where records say.

Random weights end nothing, so lengths are pairs, predicted and written, that were measured with an embedded
model (`benchmarks.passes.replay`), scaled; a row is known by the length of its prompt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.passes.replay import Lengths, Replay, kept_pairs, lengths_for
from benchmarks.passes.shapes import random_model, shape_of
from benchmarks.serving.load import Arm, LoadRequest
from lastword.errors import PromptError
from lastword.policies.cache import DualCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe
from lastword.serve.request import ServerRequest

BLOCK = 32
CANVAS = 1024  # slots of a canvas that nobody predicted


class Characters:
    """A character for every token, whatever it is: answers of random weights are no text."""

    bos = None
    chat_template = None

    def encode(self, text: str) -> list[int]:
        raise PromptError("a model of random weights reads token ids; it has no text")

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        raise PromptError("a model of random weights reads token ids; it has no chat template")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(chr(0x4E00 + one % 20_000) for one in ids)


def shaped_model(shape: str, device: str, dtype: str) -> Any:
    """The model of a shape, and what stands for its tokenizer."""
    made = random_model(shape_of(shape), torch.device(device), getattr(torch, dtype))
    made.tokenizer = Characters()  # type: ignore[assignment]
    return made


def shaped_requests(
    model: Any, count: int, arm: Arm, *, predicted: int, shortest: int, pace: float, seed: int = 0
) -> list[LoadRequest]:
    """The same prompts and lengths for every arm, in the same order."""
    pairs = lengths_for(min(count, len(kept_pairs().pairs)), predicted)
    draw = random.Random(seed)
    order = draw.sample(range(count), count)
    prompts = [[draw.randrange(model.ids.vocab_size - 2) for _ in range(shortest + at)] for at in order]
    lengths = [pairs[number % len(pairs)] for number in range(count)]
    length = Replay.of(prompts, lengths) if arm.predicts else Fixed(CANVAS)
    recipe = Recipe(length, MostConfident(EqualShares(pace)), cache=DualCache(), block=BLOCK)
    return [
        LoadRequest(number, "replayed", "paced", ServerRequest(tuple(prompt), recipe), _useful(own, arm))
        for number, (prompt, own) in enumerate(zip(prompts, lengths))
    ]


def _useful(own: Lengths, arm: Arm) -> int:
    return own.useful if arm.predicts else min(CANVAS, own.written)
