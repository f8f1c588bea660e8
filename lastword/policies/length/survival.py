"""Survival: the paper's predictor. One pass over a long canvas says how long the answer will be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import cached_arange
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError, WrongTypeError
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    Reads,
    check_optional_slots,
    resolved_slots,
)
from lastword.survival.distribution import LengthDistribution
from lastword.survival.estimate import Estimate, Mean
from lastword.survival.interpretation import EndSignal, Hazard, Interpretation, TurnEnd
from lastword.validation import check_callable, check_choice, check_int, check_type, short_repr


@dataclass(frozen=True)
class Survival(LengthPolicy):
    """Read the end-token probability of every slot as a hazard and plan for an estimate of it.

    Algorithm 1 of "Survival-Guided Length Control for Efficient Diffusion Language Models"
    (Kobyzev, Ghaddar, Cui): one forward pass over `limit` masks (without a number, as many as the model is
    made for), h(k) = softmax at the end token,
    S(k) = prod(1 - h(i)), expected length = sum of S(k-1), clipped to [1, limit], rounded up.
    Costs one pass over prompt + limit columns. The probe reads the plain model: guidance, hooks and
    end-token controls do not touch it.

    `reading` says what the probability is taken for: the paper's Hazard, what fits the model's
    training better (EndedBy, Boundary, FirstBoundary, TurnEnd), or Auto, which picks by the signal's
    shape. Readings cost nothing. `ends="document"` gives them the document end as the paper does, the
    turn end of chat models apart; `ends="any"` adds the two up.
    """

    name: ClassVar[str] = "survival"
    cost_summary: ClassVar[str] = "one probe of `limit` slots"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), Algorithm 1"

    limit: int | None = None
    estimate: Estimate = Mean()
    ends: str = "document"
    interpretation: Interpretation = Hazard()

    def __post_init__(self) -> None:
        check_optional_slots("Survival", "limit", self.limit)
        check_choice("Survival", "ends", self.ends, "document", "any")
        if not callable(self.estimate) or isinstance(self.estimate, (type, Interpretation)):
            raise WrongTypeError(
                f"Survival(estimate={short_repr(self.estimate)}) was given; it must be Mean(), Quantile(q), "
                "Cheapest(cut) or Scaled(factor)"
            )
        if not hasattr(type(self.estimate), "cost_summary"):  # one of ours is called as it should be
            check_callable("Survival", "estimate", self.estimate, ("lengths",))
        check_type(
            "Survival",
            "interpretation",
            self.interpretation,
            Interpretation,
            "Hazard(), EndedBy(), Boundary(), FirstBoundary(), TurnEnd() or Auto()",
        )
        if self.ends == "any" and isinstance(self.interpretation, TurnEnd):
            raise SettingError(
                "Survival(ends='any', interpretation=TurnEnd()) was given; TurnEnd reads the two end tokens "
                "apart and 'any' adds them up: leave ends out"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(max_slots=self.limit, capturable=True)

    def resolved(self, limits: ModelLimits) -> Survival:
        return replace(self, limit=limits.resolve(self.limit))

    def lengths(self, probe: Probe) -> LengthDistribution:
        """The length distribution behind the plan."""
        return self.interpret(probe(resolved_slots(self, self.limit)))

    def interpret(self, prediction: Prediction) -> LengthDistribution:
        """The distribution any pass over `limit` slots speaks of: a written slot ends or does not."""
        lengths = self.interpretation(self.signal(prediction))
        if not isinstance(lengths, LengthDistribution):
            raise WrongTypeError(
                f"{type(self.interpretation).__name__} returned {short_repr(lengths)}; a reading returns a "
                "LengthDistribution"
            )
        return lengths

    def signal(self, prediction: Prediction, canvas: Canvas | None = None) -> EndSignal:
        """The end tokens' probabilities a pass gives: what the reading reads.

        With `canvas`, words count as they stand there: those this pass chose included.
        """
        canvas = canvas or prediction.canvas
        ids, slots = (
            canvas.ids,
            slice(canvas.start, canvas.start + resolved_slots(self, self.limit)),
        )
        written = canvas.answer & (canvas.tokens != ids.mask)
        turns = [end for end in ids.turn_ends if end != ids.end]
        turned = torch.isin(canvas.tokens, torch.tensor(turns, dtype=torch.long, device=canvas.device))
        ends, others = (
            prediction.columns.scatter(prediction.probability_of(*some), 0.0) for some in ([ids.end], turns)
        )
        document = torch.where(written, canvas.ended.double(), ends)
        turn = torch.where(written, turned.double(), others)
        words = (written & (canvas.ended.cumsum(-1) == 0))[:, slots]
        reached = (words * (cached_arange(words.shape[-1], canvas.device) + 1)).amax(-1)
        signal = EndSignal(document[:, slots], turn[:, slots], reached.cpu())  # lengths are read there
        return signal.merged if self.ends == "any" else signal

    def horizon(self, lengths: LengthDistribution) -> Int[Tensor, "B"]:
        """How many slots the estimate asks for."""
        estimated = self.estimate(lengths)
        if not isinstance(estimated, Tensor) or estimated.shape != lengths.tail.shape:
            raise WrongTypeError(
                f"the estimate {type(self.estimate).__name__} returned {short_repr(estimated)}; it returns a "
                "tensor with a number of slots a row"
            )
        return estimated.clamp(1, resolved_slots(self, self.limit)).ceil().long()

    def plan(self, probe: Probe) -> Plan:
        lengths = self.lengths(probe)
        return Plan(self.horizon(lengths), lengths)


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
