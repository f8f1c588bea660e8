"""How many masks to fill in a pass, for the rules that count."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.checks import check_number

SLOWEST = 1e-3  # tokens a pass: nobody waits a thousand passes for one
TOLERANCE = 1e-9  # keeps 32 / 3.2 at 10 where floating point makes it 10.000000000000002


@dataclass(frozen=True)
class Schedule(ABC):
    """A pace in tokens per pass, turned into a count for each pass of a window.

    The authors' loops take a total number of steps, which does not shrink with the canvas; a pace
    does. Their `steps` for a canvas of N tokens is a pace of N / steps.
    """

    pace: float = 1.0

    def __post_init__(self) -> None:
        check_number(type(self).__name__, "pace", self.pace, least=SLOWEST)

    def steps(self, masks: int) -> int:
        """How many passes a window that opened with `masks` masks takes."""
        return max(1, math.ceil(masks / self.pace - TOLERANCE))

    def steps_of(self, masks: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The same for every row."""
        return (masks.double() / self.pace - TOLERANCE).ceil().clamp(1, 2**53).long()

    @abstractmethod
    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        """How many of each row's `remaining` open masks to fill in this pass."""
