"""MostConfident: LLaDA `low_confidence`, Dream `maskgit_plus`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import RankedRule


@dataclass(frozen=True)
class MostConfident(RankedRule):
    """Fill where the candidate is likeliest.

    LLaDA names the rule for what stays masked (`low_confidence`), Dream for its source
    (`maskgit_plus`, after MaskGIT, Chang et al., 2022).
    """

    name: ClassVar[str] = "most-confident"
    price: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022); LLaDA low_confidence, Dream maskgit_plus"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.confidence
