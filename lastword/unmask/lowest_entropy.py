"""LowestEntropy: Dream `entropy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import RankedRule


@dataclass(frozen=True)
class LowestEntropy(RankedRule):
    """Fill where the distribution is least spread: the order behind Dream's published numbers."""

    name: ClassVar[str] = "lowest-entropy"
    price: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "Dream entropy (Ye et al., 2025)"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return -prediction.entropy
