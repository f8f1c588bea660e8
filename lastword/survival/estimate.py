"""Mean, Quantile, Cheapest, Scaled: from a length distribution to one number.

Estimates are plain data, so a recipe that holds one can be saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.survival.distribution import LengthDistribution
from lastword.validation import check_int, check_number, check_type


@dataclass(frozen=True)
class Mean:
    """The expected length, restricted to the probe: the paper's choice (Algorithm 1)."""

    name: ClassVar[str] = "mean"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), Algorithm 1"

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return lengths.mean


@dataclass(frozen=True)
class Quantile:
    """The length a share `q` of answers does not exceed; SmartCrop crops at q = 0.95.

    Where every missing slot has a price and every extra one too, `Quantile.from_costs` is the cheapest:

    >>> Quantile.from_costs(missing=9.0, extra=1.0)
    Quantile(q=0.9)
    """

    name: ClassVar[str] = "quantile"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "SmartCrop (arXiv 2603.06123)"

    q: float = 0.95

    def __post_init__(self) -> None:
        check_number("Quantile", "q", self.q, above=0, below=1)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return lengths.quantile(self.q).double()

    @classmethod
    def from_costs(cls, missing: float, extra: float) -> Quantile:
        """The quantile with the least expected price: missing / (missing + extra), the newsvendor's."""
        check_number("Quantile.from_costs", "missing", missing, above=0)
        check_number("Quantile.from_costs", "extra", extra, above=0)
        return cls(missing / (missing + extra))


@dataclass(frozen=True)
class Cheapest:
    """The length n with the least expected price: n slots, and `cut` slots more if the answer is cut.

    A cut answer mostly is a lost one, however little was missing, so its price is one sum: say 300 if
    a right answer is worth 300 slots of canvas to you. Minimises n + cut * P(L > n) row by row, which
    is some quantile of every row and a different one for each: a row whose last few percent lie
    far away is not followed there. Costs nothing.
    """

    name: ClassVar[str] = "cheapest"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    truncation_cost: float = 300.0

    def __post_init__(self) -> None:
        check_number("Cheapest", "truncation_cost", self.truncation_cost, above=0)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        slots = torch.arange(1, lengths.slots + 1)
        return ((slots + self.truncation_cost * lengths.survival[..., 1:]).argmin(-1) + 1).double()


@dataclass(frozen=True)
class Scaled:
    """Another estimate times a factor, and `margin` slots more.

    The factor is what calibration learns (`survival.upper_bound`). The margin is room that does not
    depend on the length: cropping to the last word is not free even where the answer fits, since
    models use the end tokens behind it as scratch space (arXiv 2603.05197).

    >>> import torch
    >>> coin = LengthDistribution.from_hazard(torch.full((50,), 0.5))
    >>> round(Scaled(1.5, margin=16)(coin).item(), 6)
    19.0
    """

    name: ClassVar[str] = "scaled"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours; split-conformal prediction (Vovk et al., 2005)"

    factor: float = 1.0
    estimate: Mean | Quantile | Cheapest = Mean()
    margin: int = 0

    def __post_init__(self) -> None:
        check_number("Scaled", "factor", self.factor, above=0)
        check_int("Scaled", "margin", self.margin, minimum=0)
        check_type(
            "Scaled",
            "estimate",
            self.estimate,
            (Mean, Quantile, Cheapest),
            "Mean(), Quantile(q) or Cheapest()",
        )

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return self.factor * self.estimate(lengths) + self.margin


Estimate = Mean | Quantile | Cheapest | Scaled
