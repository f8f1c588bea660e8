"""SurvivalAtStep: the paper's predictor, read from a later denoising step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    Reads,
    resolved_slots,
)
from lastword.policies.length.survival import Survival
from lastword.validation import check_int, check_type


@dataclass(frozen=True)
class SurvivalAtStep(LengthPolicy):
    """Decode `step` steps on the canvas of `length.limit` slots, then predict from the next pass and crop.

    The paper's step ablation (table "length drift": steps 2, 5, 7 and 10 move the estimate by less
    than 10 slots). A slot written by then ends the answer for certain or not at all: its hazard is
    1 for an end token and 0 for a word. Step 0 reads the first pass, which sees what the probe of
    Survival sees. Costs no probe, but `step` + 1 passes on the long canvas, and logits of the whole
    answer in every pass; unlike a probe's, they are those of decoding, guidance and hooks included.

    The crop keeps text: where a word was written beyond the predicted horizon and before any end token,
    the row ends with that word instead. End tokens beyond the horizon are cut. To record the drift
    alone, read each step of a Fixed(limit) decoding: `Survival(limit).read(step.prediction)`.
    """

    name: ClassVar[str] = "survival-at-step"
    cost_summary: ClassVar[str] = "no probe; `step` + 1 passes on the canvas of `limit` slots"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), step ablation"

    step: int = 5
    length: Survival = Survival()

    def __post_init__(self) -> None:
        check_int("SurvivalAtStep", "step", self.step, minimum=0)
        check_type(
            "SurvivalAtStep",
            "length",
            self.length,
            Survival,
            "Survival(), whose limit, estimate and ends it takes",
        )

    @property
    def traits(self) -> LengthTraits:
        reads: Reads = "one step" if self.step else "answer"  # the first pass reads all there is
        return LengthTraits(resizes="any time", reads=reads, max_slots=self.length.limit)

    def resolved(self, limits: ModelLimits) -> SurvivalAtStep:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.length.limit)))

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        now = clock.step == self.step
        if not bool(now.any()):
            return canvas, state
        predicted = self.length.horizon(self.length.interpret(prediction))
        horizon = torch.maximum(predicted.to(canvas.device), canvas.min_horizon)
        heard = now & prediction.covers_all(canvas.answer)
        return canvas.crop(torch.where(heard, horizon, canvas.horizon)), state
