"""What a cache is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas import Canvas
from lastword.clock import Clock
from lastword.memory import KeyValues


class Cache(ABC):
    """Which columns went stale and must be recomputed in this pass; the rest is in memory."""

    @abstractmethod
    def open(self, canvas: Canvas) -> KeyValues | None:
        """A memory for this canvas, or None to keep nothing."""

    @abstractmethod
    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns to recompute; all of a row's columns where its window opens."""

    def readable(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns this pass has logits for; a cache that keeps those of others says so."""
        return self.stale(canvas, clock)
