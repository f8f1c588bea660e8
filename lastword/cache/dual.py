"""DualCache: keep everything but the block (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from lastword.cache.by_block import BlockCache
from lastword.cache.cache import CacheTraits
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock


@dataclass(frozen=True)
class DualCache(BlockCache):
    """Recompute the block alone; keep what lies left and right of it.

    Fast-dLLM's dual cache (Wu et al., 2025): one full pass when a block opens, then passes as wide as
    the block. Coarser than the prefix cache: the masks to the right do not see the block fill.
    Parts that read the whole answer (early commits, policies that resize) get it when a block opens, and
    again in the pass after a resize. With one block for the whole answer this is the prefix cache.
    `prompt_every=0` computes the prompt in the row's first pass alone and the answer at every opening,
    `prompt_every=4` the prompt at every fourth opening; Fast-dLLM's is 1.
    """

    name: ClassVar[str] = "dual"
    price: ClassVar[str] = "a full pass when a block opens, then the block alone"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    traits = CacheTraits(by_block=True, keeps_suffix=True)

    def within(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return clock.window.columns(canvas.width)
