"""Reread: what the answer has come to says how long it will be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.length.calibrated import Calibrated
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    resolved_slots,
)
from lastword.policies.length.survival import Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto
from lastword.validation import check_choice, check_int, check_type

MIN_SURVIVAL = 1e-3  # a curve that leaves no more than this behind a slot says nothing of what lies there


@dataclass(frozen=True)
class Reread(LengthPolicy):
    """Plan with `length`; whenever a block is complete, read the slots behind it again and resize.

    Half of an answer says more about its other half than the prompt did. The pass that completes a
    block has logits for every slot behind it, so a second reading costs no pass: `length.reading`
    turns them into hazards, and `length.estimate` says how many slots are left. It is asked about
    what is left alone, so that a factor stretches the rest and not the words that are there.

    A canvas shorter than the probe's says nothing of the slots it does not have. Behind its last one
    the latest reading that saw them goes on to hold, given that the answer comes so far: hazards are
    conditional, so the two curves are joined slot by slot. Where that reading was sure of an end
    before, it knows nothing of an answer that comes so far: the end is then taken to lie `by` slots
    behind the canvas, to be read there. Auto's choice is made once, on the probe: the short end of a
    canvas looks like another kind of training.

    Words are never cut, at least one slot is left, and no row gets longer than `length.limit`. A row
    grows by `by` slots at most: behind the canvas the curve is old, and the next block reads the new
    slots themselves. `shrink=False` only ever grows. A row that wrote its end is left alone
    (StopAtEnd drops what lies behind), and so is one whose slots are all filled, of which nothing was
    read: put GrowWhenFull around it for those. A chat model that was trained on canvases its answers
    fit tends to say that they fit: leave it room to say otherwise in, with Quantile(0.9) or
    Scaled(margin=16).

    Costs no pass beyond the probe, but logits of the whole answer in each; those are decoding's,
    guidance and hooks included, and the words this pass chose were still masks in it.
    """

    name: ClassVar[str] = "reread"
    cost_summary: ClassVar[str] = "the probe of `length`; logits of the whole answer in every pass"
    source: ClassVar[str] = "ours, after the density curves of rho-EOS (arXiv 2601.22527)"

    length: Survival = Survival()
    increment: int = 64
    shrink: bool = True

    def __post_init__(self) -> None:
        check_int("Reread", "increment", self.increment, minimum=1)
        check_choice("Reread", "shrink", self.shrink, True, False)
        if isinstance(self.length, Calibrated):
            raise SettingError(
                f"Reread(length={self.length!r}) was given; the bound is on whole answers planned once, and "
                "does not hold for what is left of one: use StopAtEnd(GrowWhenFull(Calibrated())), which "
                "keeps it, or Reread(Survival(estimate=Quantile(0.9)))"
            )
        check_type(
            "Reread",
            "length",
            self.length,
            Survival,
            "Survival(), whose limit, estimate and reading it takes: put other wrappers around it, as in "
            "StopAtEnd(GrowWhenFull(Reread(Survival())))",
        )

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

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        left, policy = canvas.masked, self.length
        complete = ~(left & clock.window.columns(canvas.width)).any(-1)
        heard = complete & left.any(-1) & ~canvas.ended.any(-1) & prediction.covers_all(left)
        heard = heard & (canvas.horizon <= resolved_slots(self, policy.limit))
        if not state or not bool(heard.any()):
            return canvas, state
        hazard, picked = RereadState(*state)
        signal = policy.signal(prediction, canvas)
        written = torch.maximum(clock.window.last - canvas.start, canvas.min_horizon)
        survival = LengthDistribution(hazard).survival
        hazard, horizon = hazard.clone(), canvas.horizon.clone()
        for row in heard.nonzero()[:, 0].tolist():
            first, last = int(written[row]), int(canvas.horizon[row])
            own = int(picked[row])
            reading = Auto.candidates[own] if own >= 0 else policy.interpretation
            again = reading(signal.row(row).first_slots(last))
            if survival[row, last] < MIN_SURVIVAL:
                hazard[row, last : last + self.increment] = 0.0
                hazard[row, last + self.increment - 1 :] = 1.0
            hazard[row, :last] = again.hazard[0]
            hazard[row, :first] = 0.0
            horizon[row] = first + _left(hazard[row, first:], policy)
        if not self.shrink:
            horizon = torch.maximum(horizon, canvas.horizon)
        longer = (horizon - canvas.horizon).clamp(0, self.increment)
        return canvas.crop(horizon).extend(longer), RereadState(hazard, picked)


class RereadState(NamedTuple):
    """What was last read of each row's length, and as what: the state of Reread."""

    hazard: Float[Tensor, "B T"]
    candidate: Int[Tensor, "B"]  # of Auto's readings, the row's own; -1 where the policy names the reading

    @classmethod
    def initial(cls, lengths: LengthDistribution) -> RereadState:
        rows = len(lengths.hazard)
        known = lengths.interpretation if isinstance(lengths.interpretation, tuple) else (None,) * rows
        picked = [Auto.candidates.index(one) if one in Auto.candidates else -1 for one in known]
        return cls(lengths.hazard, torch.tensor(picked))


def _left(hazard: Float[Tensor, "R"], policy: Survival) -> int:
    """How many slots more, of the R there may be: none behind a word in the last slot there is."""
    if not len(hazard):
        return 0
    asked = int(policy.horizon(LengthDistribution(hazard[None])))
    return min(asked, len(hazard))
