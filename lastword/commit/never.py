"""Never: refine to the end, as the authors' loops do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.commit.rule import CommitRule, CommitTraits
from lastword.passes.prediction import Prediction


@dataclass(frozen=True)
class Never(CommitRule):
    """No early commit."""

    name: ClassVar[str] = "never"
    price: ClassVar[str] = "nothing"
    source: ClassVar[str] = "the plain loops of LLaDA and Dream"

    traits = CommitTraits(reads_answer=False)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        return torch.zeros_like(canvas.horizon, dtype=torch.bool)
