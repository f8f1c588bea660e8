"""NoCache: every pass computes every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from lastword.cache.cache import Cache, CacheTraits
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock


@dataclass(frozen=True)
class NoCache(Cache):
    """Exact: attention sees both ways, so one new token changes every column's state."""

    name: ClassVar[str] = "none"
    price: ClassVar[str] = "every column in every pass; exact"
    source: ClassVar[str] = "the plain loops of LLaDA and Dream"

    traits = CacheTraits(keeps=False)

    def open(self, canvas: Canvas) -> None:
        return None

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return canvas.valid
