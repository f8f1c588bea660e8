"""FeatureCache: refresh prompt and answer at intervals, in between only what changed (dLLM-Cache)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.cache.cache import Cache, CacheTraits
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.checks import check_number, check_whole
from lastword.memory.features import Features
from lastword.memory.memory import Memory


@dataclass(frozen=True)
class FeatureCache(Cache):
    """Recompute the prompt every `prompt_interval` passes, the answer every `response_interval`.

    dLLM-Cache (Liu et al., 2025). In between, each layer recomputes the `share` of answer columns whose
    values changed most (cosine) since they were stored, and takes from memory what it said about
    the others; with a share of 0 it recomputes none. The first layer recomputes everything in every
    pass. Needs no blocks. Defaults are the authors' for LLaDA-Base on GSM8K; `FeatureCache(1, 1)`
    is exact.

    Cost: in columns, averaged over layers and rounded up in every pass. A column counts in a
    layer that sends it through attention and MLP; projecting the values to choose by does not, which
    is a thirteenth of such a column for LLaDA-8B. Memory: keys, values and two outputs of every
    layer but the first: twice what the block caches keep for LLaDA-8B, eight times for Dream-7B,
    whose grouped heads make keys and values small.

    We differ from the released code where it is narrower: prompt lengths are per row, padding is
    hidden, grouped heads work for any grouping (all key-value heads of a column form one vector to
    compare, where theirs has Dream's factor of 7 written in), and values are compared in float32.
    """

    name: ClassVar[str] = "feature"
    price: ClassVar[str] = (
        "a full pass at intervals, in between a share of the answer in every layer"
    )
    source: ClassVar[str] = "dLLM-Cache (Liu et al., 2025, arXiv 2506.06295)"

    prompt_interval: int = 25
    response_interval: int = 5
    share: float = 0.25

    def __post_init__(self) -> None:
        check_whole("FeatureCache", "prompt_interval", self.prompt_interval, least=1)
        check_whole("FeatureCache", "response_interval", self.response_interval, least=1)
        check_number("FeatureCache", "share", self.share, least=0, most=1)

    traits = CacheTraits(fills_in=True)

    def open(self, canvas: Canvas) -> Memory:
        return Features(len(canvas.tokens), canvas.width, self.share)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        prompt = (clock.step % self.prompt_interval == 0)[:, None]
        response = (clock.step % self.response_interval == 0)[:, None]
        return canvas.valid & torch.where(canvas.answer, response, prompt)
