"""From a distribution to one number. Estimates are plain data, so a recipe that holds one can be saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lastword.checks import check_number
from lastword.survival.curve import LengthDistribution


@dataclass(frozen=True)
class Mean:
    """The expected length, restricted to the probe: the paper's choice (Algorithm 1)."""

    cost: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), Algorithm 1"

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "B"]:
        return lengths.mean


@dataclass(frozen=True)
class Quantile:
    """The length a share `q` of answers does not exceed; SmartCrop crops at q = 0.95."""

    cost: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "SmartCrop (arXiv 2603.06123)"

    q: float = 0.95

    def __post_init__(self) -> None:
        check_number("Quantile", "q", self.q, above=0, below=1)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "B"]:
        return lengths.quantile(self.q).double()


Estimate = Mean | Quantile
