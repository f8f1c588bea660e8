"""Reread: predict the remaining length again whenever a block is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan, Probe, resolved_slots
from lastword.policies.length.survival import Calibrated, Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto
from lastword.validation import check_choice, check_int, check_type, checked_field

MIN_SURVIVAL = 1e-3  # with less probability than this left after a slot, a curve does not determine later slots


@dataclass(frozen=True)
class Reread(LengthPolicy):
    """Plan with `length`; when a block is complete, predict the remaining length from later slots and resize.

    The first half of an answer says more about the second half than the prompt does. The pass that completes a block
    has logits for every slot after it, so a new prediction costs no forward pass: `length.interpretation` turns these
    logits into hazards, and `length.estimate` turns the hazards into a number of remaining slots. The estimate covers
    these slots only, so a factor in it does not scale the text that is already written.

    For slots beyond the end of the canvas, the latest prediction that covered them remains valid: a hazard is
    conditional on the answer reaching its slot, so the two curves are joined slot by slot. If that prediction was
    certain of an earlier end, the end is assumed to lie `increment` slots beyond the canvas and predicted anew there.
    Auto chooses once, on the probe: the signal of a few remaining slots looks like that of a model trained otherwise.

    Text is never cut, at least one slot is left, and no row exceeds `length.limit`. A row grows by at most `increment`
    slots at a time; with `shrink=False` it only grows. Rows with an end token are left unchanged (StopAtEnd removes the
    slots after it), and so are rows without masks (GrowWhenFull around this policy lengthens them). A chat model that
    was trained on canvases of sufficient length tends to predict that the answer fits: plan more slots for it, with
    Quantile(0.9) or Scaled(margin=16).

    Costs no forward pass beyond the probe, but the logits of the whole answer in each pass; these include guidance and
    hooks, and tokens chosen in a pass were still masks when it ran.
    """

    name = "reread"
    cost_summary = "the probe of `length`; logits of the whole answer"
    source = "ours, after rho-EOS (arXiv 2601.22527)"

    length: Survival = Survival()
    increment: int = checked_field(64, check_int, minimum=1)
    shrink: bool = checked_field(True, check_choice, True, False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.length, Calibrated):
            raise SettingError(
                f"Reread(length={self.length!r}) was given; the bound of a calibration is for whole answers that are "
                "planned once, not for the rest of one: use StopAtEnd(GrowWhenFull(Calibrated())), which keeps it, "
                "or Reread(Survival(estimate=Quantile(0.9)))"
            )
        expected = "Survival(): put other wrappers around it, as in StopAtEnd(GrowWhenFull(Reread(Survival())))"
        check_type("Reread", "length", self.length, Survival, expected)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(
            resizes="between blocks",
            reads="ahead",
            grows=True,
            replans=True,
            needs_blocks=True,
            max_slots=self.length.limit,
        )

    def resolved(self, limits: ModelLimits) -> Reread:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        plan = self.length.plan(probe)
        return plan if plan.lengths is None else replace(plan, state=RereadState.initial(plan.lengths))

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        masked, policy = canvas.masked, self.length
        complete = ~(masked & clock.window.columns(canvas.width)).any(-1)
        predictable = complete & masked.any(-1) & ~canvas.ended.any(-1) & prediction.covers_all(masked)
        predictable = predictable & (canvas.horizon <= resolved_slots(self, policy.limit))
        if not state or not bool(predictable.any()):
            return canvas, state
        hazard, candidates = RereadState(*state)
        signal = policy.signal(prediction, canvas)
        written = torch.maximum(clock.window.last - canvas.start, canvas.min_horizon)
        survival = LengthDistribution(hazard).survival
        hazard, horizon = hazard.clone(), canvas.horizon.clone()
        for row in predictable.nonzero()[:, 0].tolist():
            first, last = int(written[row]), int(canvas.horizon[row])
            candidate = int(candidates[row])
            interpretation = Auto.candidates[candidate] if candidate >= 0 else policy.interpretation
            lengths = interpretation(signal.row(row).first_slots(last))
            if survival[row, last] < MIN_SURVIVAL:
                hazard[row, last : last + self.increment] = 0.0
                hazard[row, last + self.increment - 1 :] = 1.0
            hazard[row, :last] = lengths.hazard[0]
            hazard[row, :first] = 0.0
            beyond = hazard[row : row + 1, first:]
            remaining = int(policy.horizon(LengthDistribution(beyond))) if beyond.numel() else 0
            horizon[row] = first + min(remaining, beyond.numel())
        if not self.shrink:
            horizon = torch.maximum(horizon, canvas.horizon)
        longer = (horizon - canvas.horizon).clamp(0, self.increment)
        return canvas.crop(horizon).extend(longer), RereadState(hazard, candidates)


class RereadState(NamedTuple):
    """The latest predicted hazard of each row, and the interpretation that Auto chose for it."""

    hazard: Float[Tensor, "B T"]
    candidate: Int[Tensor, "B"]  # index in Auto.candidates; -1: the policy's own interpretation

    @classmethod
    def initial(cls, lengths: LengthDistribution) -> RereadState:
        rows = len(lengths.hazard)
        chosen = lengths.interpretation if isinstance(lengths.interpretation, tuple) else (None,) * rows
        indices = [Auto.candidates.index(item) if item in Auto.candidates else -1 for item in chosen]
        return cls(lengths.hazard, torch.tensor(indices))
