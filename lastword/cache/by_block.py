"""BlockCache: what prefix and dual cache share, a refresh when a block opens."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.cache.cache import Cache
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.checks import check_whole
from lastword.memory.key_values import KeyValues
from lastword.memory.memory import Memory


@dataclass(frozen=True)
class BlockCache(Cache):
    """Recompute the answer when a window opens, the prompt too at every `prompt_every`-th opening.

    The first opening always computes the prompt; with 0 no other does. A longer prompt makes the openings
    dearer, and what it says of itself changes little while the answer fills.
    """

    prompt_every: int = 1

    def __post_init__(self) -> None:
        check_whole(type(self).__name__, "prompt_every", self.prompt_every, least=0)

    def open(self, canvas: Canvas) -> Memory:
        return KeyValues(*canvas.tokens.shape)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        before = clock.openings - 1
        prompt = (before % self.prompt_every if self.prompt_every else before) == 0
        refreshed = clock.opening[:, None] & (canvas.answer | prompt[:, None])
        return canvas.valid & (refreshed | self.within(canvas, clock))

    @abstractmethod
    def within(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns every pass of a block recomputes."""
