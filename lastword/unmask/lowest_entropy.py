"""LowestEntropy: Dream `entropy`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lastword.prediction import Prediction
from lastword.unmask.ranked import RankedRule


@dataclass(frozen=True)
class LowestEntropy(RankedRule):
    """Fill where the distribution is least spread: the order behind Dream's published numbers."""

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return -prediction.entropy
