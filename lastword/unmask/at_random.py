"""AtRandom: LLaDA `random`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import RankedRule


@dataclass(frozen=True)
class AtRandom(RankedRule):
    """Fill a fixed count of masks, anywhere. The baseline every order should beat."""

    price: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "LLaDA random (Nie et al., 2025)"

    @property
    def heeds_model(self) -> bool:
        return False

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        took_part = prediction.covers.any(-1, keepdim=True)
        return prediction.dice.uniform_at(prediction.canvas.valid & took_part)
