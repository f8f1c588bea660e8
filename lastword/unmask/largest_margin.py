"""LargestMargin: Dream `topk_margin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import RankedRule


@dataclass(frozen=True)
class LargestMargin(RankedRule):
    """Fill where the best token leads the second best by most (Kim et al., 2025)."""

    name: ClassVar[str] = "largest-margin"
    price: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "Kim et al., 2025; Dream topk_margin"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.margin
