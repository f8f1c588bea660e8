"""Cache: the contract of what says which columns to recompute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.memory.memory import Memory


@dataclass(frozen=True)
class CacheTraits:
    """What a cache says of itself: what other parts have to be ready for."""

    keeps: bool = True  # does anything outlive a pass?
    # Is all of the answer computed where a block opens, and only a part until the next one?
    by_block: bool = False
    keeps_suffix: bool = False  # has a pass within a block no logits for what lies behind it?
    fills_in: bool = False  # does its memory speak for the columns that are not stale?


class Cache(ABC):
    """Which columns went stale and must be recomputed in this pass; the rest is in memory.

    The memory a cache opens may recompute more of them, layer by layer.
    """

    @property
    def traits(self) -> CacheTraits:
        return CacheTraits()

    @abstractmethod
    def open(self, canvas: Canvas) -> Memory | None:
        """A memory for this canvas, or None to keep nothing."""

    @abstractmethod
    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns every layer recomputes; all of a row's columns in its first pass."""
