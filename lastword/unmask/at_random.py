"""AtRandom: LLaDA `random`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import RankedRule
from lastword.unmask.rule import RuleTraits


@dataclass(frozen=True)
class AtRandom(RankedRule):
    """Fill a fixed count of masks, anywhere. The baseline every order should beat."""

    name: ClassVar[str] = "at-random"
    price: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "LLaDA random (Nie et al., 2025)"

    traits = RuleTraits(follows_schedule=True, heeds_model=False)

    def score(self, prediction: Prediction) -> Float[Tensor, "B S"]:
        columns = prediction.columns
        own = prediction.canvas.valid & columns.read.any(-1, keepdim=True)
        return columns.at(prediction.dice.uniform_at(own))
