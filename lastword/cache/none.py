"""NoCache: every pass computes every column."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.cache.cache import Cache
from lastword.canvas import Canvas
from lastword.clock import Clock


@dataclass(frozen=True)
class NoCache(Cache):
    """Exact: attention sees both ways, so one new token changes every column's state."""

    @property
    def keeps(self) -> bool:
        return False

    def open(self, canvas: Canvas) -> None:
        return None

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return canvas.valid
