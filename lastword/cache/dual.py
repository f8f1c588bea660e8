"""DualCache: keep everything but the block (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from lastword.cache.cache import Cache, CacheTraits
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.memory.key_values import KeyValues
from lastword.memory.memory import Memory


@dataclass(frozen=True)
class DualCache(Cache):
    """Recompute the block alone; keep what lies left and right of it.

    Fast-dLLM's dual cache (Wu et al., 2025): one full pass when a block opens, then passes as wide as
    the block. Coarser than the prefix cache: the masks to the right do not see the block fill.
    Parts that read the whole answer (early commits, policies that resize) get it when a block opens, and
    again in the pass after a resize. With one block for the whole answer this is the prefix cache.
    """

    name: ClassVar[str] = "dual"
    price: ClassVar[str] = "a full pass when a block opens, then the block alone"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    traits = CacheTraits(by_block=True, keeps_suffix=True)

    def open(self, canvas: Canvas) -> Memory:
        return KeyValues(*canvas.tokens.shape)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        block = clock.window.columns(canvas.width)
        return canvas.valid & (block | clock.opening[:, None])
