"""What a commit rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas import Canvas
from lastword.clock import Clock
from lastword.prediction import Prediction


class CommitRule(ABC):
    """Which rows may fill every remaining mask at once: when more refining changes nothing."""

    @property
    def reads_answer(self) -> bool:
        """A rule that commits needs candidates for every mask."""
        return True

    @abstractmethod
    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]: ...
