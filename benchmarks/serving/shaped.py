"""Requests for a model of a real shape with random weights, with replayed lengths.

Random weights never write an end token, so scaled pairs of predicted and written lengths of an embedded model are
replayed (`benchmarks.passes.replay`). A row is identified by the length of its prompt.
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
CANVAS = 1024  # slots without a prediction


class Characters:
    """A tokenizer with an arbitrary character per token, because random weights do not write text."""

    bos = None
    chat_template = None

    def encode(self, text: str) -> list[int]:
        raise PromptError("a model with random weights has no tokenizer for text; give token ids")

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        raise PromptError("a model with random weights has no chat template; give token ids")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(chr(0x4E00 + token % 20_000) for token in ids)


def shaped_model(shape: str, device: str, dtype: str) -> Any:
    """Return a model of a shape with random weights and a substitute for its tokenizer."""
    model = random_model(shape_of(shape), torch.device(device), getattr(torch, dtype))
    model.tokenizer = Characters()  # type: ignore[assignment]
    return model


def shaped_requests(
    model: Any, count: int, arm: Arm, *, predicted: int, shortest: int, tokens_per_pass: float, seed: int = 0
) -> list[LoadRequest]:
    """Return requests with the same prompts and lengths for every arm, in the same order."""
    pairs = lengths_for(min(count, len(kept_pairs().pairs)), predicted)
    draw = random.Random(seed)
    order = draw.sample(range(count), count)
    prompts = [[draw.randrange(model.ids.vocab_size - 2) for _ in range(shortest + at)] for at in order]
    lengths = [pairs[number % len(pairs)] for number in range(count)]
    length = Replay.of(prompts, lengths) if arm.predicts else Fixed(CANVAS)
    recipe = Recipe(length, MostConfident(EqualShares(tokens_per_pass)), cache=DualCache(), block=BLOCK)
    return [
        LoadRequest(number, "replayed", "replayed", ServerRequest(tuple(prompt), recipe), _useful(length_pair, arm))
        for number, (prompt, length_pair) in enumerate(zip(prompts, lengths))
    ]


def _useful(pair: Lengths, arm: Arm) -> int:
    return pair.useful if arm.predicts else min(CANVAS, pair.written)
