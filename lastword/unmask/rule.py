"""What an unmask rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from lastword.clock import Clock
from lastword.prediction import Prediction


class UnmaskRule(ABC):
    """Which masks to fill after this pass.

    A rule must let decoding end: it fills at least one mask per open row, or follows a schedule
    whose last pass fills all.
    """

    @abstractmethod
    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B L"], clock: Clock
    ) -> Bool[Tensor, "B L"]:
        """A subset of `open`, the masks of each row's window."""

    def fresh(self) -> UnmaskRule:
        """A rule with memory returns a new twin that carries it; a rule without is its own twin."""
        return self
