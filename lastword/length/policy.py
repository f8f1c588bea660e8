"""What a length policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from lastword.canvas import Canvas
from lastword.clock import Clock
from lastword.prediction import Prediction
from lastword.survival import LengthDistribution


@runtime_checkable
class Probe(Protocol):
    """One forward pass over each prompt and `slots` masks; every call is counted in the cost."""

    rows: int  # how many prompts are being planned for

    def __call__(self, slots: int) -> Prediction: ...


@dataclass(frozen=True, eq=False)
class Plan:
    """How many slots each row gets, and the distribution that says so, if one was read."""

    horizon: Int[Tensor, "B"]
    lengths: LengthDistribution | None = None


class LengthPolicy(ABC):
    """How long the answer gets. It is handed a probe, never a model: its cost is its calls."""

    @property
    def reads_answer(self) -> bool:
        """Does `revise` need logits of the whole answer, or do the open masks do?"""
        return False

    @abstractmethod
    def plan(self, probe: Probe) -> Plan:
        """Decide before the first pass."""

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock) -> Canvas:
        """Change the plan after a pass; most policies do not."""
        return canvas
