"""Survival: the paper's predictor. One pass over a long canvas says how long the answer will be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.checks import check_choice, check_whole
from lastword.errors import SettingError
from lastword.length.policy import LengthPolicy, Plan, Probe
from lastword.prediction import Prediction
from lastword.survival import Estimate, LengthDistribution, Mean


@dataclass(frozen=True)
class Survival(LengthPolicy):
    """Read the end-token probability of every slot as a hazard and plan for an estimate of it.

    Algorithm 1 of "Survival-Guided Length Control for Efficient Diffusion Language Models"
    (Kobyzev, Ghaddar, Cui): one forward pass over `limit` masks, h(k) = softmax at the end token,
    S(k) = prod(1 - h(i)), expected length = sum of S(k-1), clipped to [1, limit], rounded up.
    Costs one pass over prompt + limit columns. The probe reads the plain model: guidance, hooks and
    end-token controls do not touch it.

    `ends="document"` reads the document end alone, as the paper does; `ends="any"` adds the turn end
    of chat models, which ends an answer as well.
    """

    limit: int = 1024
    estimate: Estimate = Mean()
    ends: str = "document"

    def __post_init__(self) -> None:
        check_whole("Survival", "limit", self.limit, least=1)
        check_choice("Survival", "ends", self.ends, "document", "any")
        if not callable(self.estimate):
            raise SettingError(
                f"Survival(estimate={self.estimate!r}) was given; it must be Mean() or Quantile(q)"
            )

    def lengths(self, probe: Probe) -> LengthDistribution:
        """The length distribution behind the plan."""
        return self.read(probe(self.limit))

    def read(self, prediction: Prediction) -> LengthDistribution:
        """The distribution any pass over `limit` slots speaks of: a written slot ends or does not."""
        canvas = prediction.canvas
        ids, slots = canvas.ids, slice(canvas.start, canvas.start + self.limit)
        chance = prediction.probability_of(*(ids.ends if self.ends == "any" else (ids.end,)))
        written = canvas.answer & (canvas.tokens != ids.mask)
        hazard = torch.where(written, canvas.ended.double(), chance)
        return LengthDistribution.from_hazard(hazard[:, slots])

    def horizon(self, lengths: LengthDistribution) -> Int[Tensor, "B"]:
        """How many slots the estimate asks for."""
        return self.estimate(lengths).clamp(1, self.limit).ceil().long()

    def plan(self, probe: Probe) -> Plan:
        lengths = self.lengths(probe)
        return Plan(self.horizon(lengths), lengths)
