"""What a cache is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.memory.memory import Memory


class Cache(ABC):
    """Which columns went stale and must be recomputed in this pass; the rest is in memory.

    The memory a cache opens may recompute more of them, layer by layer.
    """

    @property
    def keeps(self) -> bool:
        """Does anything outlive a pass?"""
        return True

    @property
    def by_block(self) -> bool:
        """Is all computed where a block opens, and of the answer only a part until the next one?"""
        return False

    @property
    def keeps_suffix(self) -> bool:
        """Does a pass within a block have no logits for what lies behind it?"""
        return False

    @abstractmethod
    def open(self, canvas: Canvas) -> Memory | None:
        """A memory for this canvas, or None to keep nothing."""

    @abstractmethod
    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns every layer recomputes; all of a row's columns in its first pass."""

    def readable(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns this pass has logits for; a memory that fills in the others says so."""
        return self.stale(canvas, clock)
