"""PrefixCache: keep everything left of the block (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.cache.by_block import BlockCache
from lastword.cache.cache import CacheTraits
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock


@dataclass(frozen=True)
class PrefixCache(BlockCache):
    """Recompute from the block's first column to the end; keep what lies left of it.

    Fast-dLLM's prefix cache (Wu et al., 2025): one full pass when a block opens, then passes over
    block and suffix. An approximation: a commit changes every column's state, and the kept ones
    are as old as the block. With one block for the whole answer, what is kept is the prompt.
    `prompt_every` is that of DualCache.
    """

    name: ClassVar[str] = "prefix"
    price: ClassVar[str] = "a full pass when a block opens, then block and suffix"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    traits = CacheTraits(by_block=True)

    def within(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        first = clock.window.first[:, None]
        return torch.arange(canvas.width, device=first.device) >= first
