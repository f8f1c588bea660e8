"""CommitRule: the contract of what ends refining early."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.passes.prediction import Prediction


@dataclass(frozen=True)
class CommitTraits:
    """What a rule says of itself: what other parts have to be ready for."""

    reads_answer: bool = True  # a rule that commits needs candidates for every mask
    # Does it count slots from the left, so that inserting some misleads it?
    counts_slots: bool = False


class CommitRule(ABC):
    """Which rows may fill every remaining mask at once: when more refining changes nothing."""

    @property
    def traits(self) -> CommitTraits:
        return CommitTraits()

    def prepare(self, canvas: Canvas) -> Canvas:
        """What the rule wants written before the first pass; most rules want nothing."""
        return canvas

    @abstractmethod
    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        """Rows to commit. `canvas` is as this pass's own choices leave it; the loop asks again in
        the next pass where a cache or a rule kept this one from reading every mask.
        """
