"""The paper's length prediction from end-token probabilities: Survival, Calibrated and SurvivalAtStep."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.canvas.columns import cached_arange
from lastword.canvas.contracts import check_returned
from lastword.canvas.tokens import FLOAT_DTYPES, check_tensor
from lastword.decoding.prediction import Prediction
from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan, Probe, Reads, resolved_slots
from lastword.survival.distribution import Estimate, LengthDistribution, Mean
from lastword.survival.interpretation import EndSignal, Hazard, Interpretation, TurnEnd
from lastword.validation import (
    Part,
    check_callable,
    check_choice,
    check_int,
    check_number,
    check_type,
    checked_field,
    short_repr,
)


@dataclass(frozen=True)
class Survival(LengthPolicy):
    """Plan the mean, or another estimate, of the length distribution from one probe of `limit` masks.

    Algorithm 1 of "Survival-Guided Length Control for Efficient Diffusion Language Models" (Kobyzev, Ghaddar, Cui):
    h(k) is the softmax at the end token in slot k, S(k) = prod(1 - h(i)), and the expected length, sum of S(k-1), is
    clipped to [1, limit] and rounded up. Costs one forward pass over the prompt and `limit` masks (unset: as many as
    the model is made for). The probe reads the plain model, without guidance, hooks or end-token settings.

    `interpretation` is the meaning of the end-token probability: the paper's Hazard, one that fits the model's training
    better (EndedBy, Boundary, FirstBoundary, TurnEnd), or Auto, which chooses by the shape of the signal. With
    `ends="document"` it receives the probability of the document end, as in the paper, and separately that of the turn
    end of chat models; with `ends="any"`, the sum of the two.
    """

    name = "survival"
    cost_summary = "one probe"
    source = "Kobyzev et al., 2026 (arXiv 2608.26374), Algorithm 1"

    limit: int | None = checked_field(None, check_int, minimum=1)
    estimate: Estimate = Mean()
    ends: str = checked_field("document", check_choice, "document", "any")
    interpretation: Interpretation = checked_field(
        Hazard(), check_type, Interpretation, "Hazard(), EndedBy(), Boundary(), FirstBoundary(), TurnEnd() or Auto()"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.estimate, Estimate):  # it may be a user's function
            if not callable(self.estimate) or isinstance(self.estimate, (type, Part)):
                raise WrongTypeError(
                    f"Survival(estimate={short_repr(self.estimate)}) was given; it must be Mean(), Quantile(q), "
                    "Cheapest(truncation_cost) or Scaled(factor)"
                )
            check_callable("Survival", "estimate", self.estimate, ("lengths",))
        if self.ends == "any" and isinstance(self.interpretation, TurnEnd):
            raise SettingError(
                "Survival(ends='any', interpretation=TurnEnd()) was given; TurnEnd needs the two end tokens "
                "separately and 'any' adds them: leave ends out"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(max_slots=self.limit, capturable=True)

    def resolved(self, limits: ModelLimits) -> Survival:
        return replace(self, limit=limits.resolve(self.limit))

    def lengths(self, probe: Probe) -> LengthDistribution:
        """Return the length distribution from which the plan is made."""
        return self.interpret(probe(resolved_slots(self, self.limit)))

    def interpret(self, prediction: Prediction) -> LengthDistribution:
        """Return the length distribution that a pass over `limit` slots predicts.

        A slot that is already written has the end probability 1 or 0.
        """
        signal, owner = self.signal(prediction), type(self.interpretation).__name__
        lengths = self.interpretation(signal)
        check_returned(owner, lengths, LengthDistribution, "a LengthDistribution")
        check_tensor(f"{owner} returned a hazard of", lengths.hazard, signal.document.shape, torch.float64)
        return lengths

    def signal(self, prediction: Prediction, canvas: Canvas | None = None) -> EndSignal:
        """Return the end-token probabilities of a pass; they are 1 or 0 in slots that are written on `canvas`.

        `canvas` is by default the canvas before the pass; give the canvas after the pass to include the tokens that
        were chosen in it.
        """
        canvas = canvas or prediction.canvas
        ids, limit = canvas.ids, resolved_slots(self, self.limit)
        slots = slice(canvas.start, canvas.start + limit)
        written = canvas.answer & (canvas.tokens != ids.mask)
        turns = [end for end in ids.turn_ends if end != ids.end]
        turned = torch.isin(canvas.tokens, torch.tensor(turns, dtype=torch.long, device=canvas.device))
        document, turn = (
            prediction.columns.scatter(prediction.probability_of(*ends), 0.0) for ends in ([ids.end], turns)
        )
        document = torch.where(written, canvas.ended.double(), document)
        turn = torch.where(written, turned.double(), turn)
        words = (written & (canvas.ended.cumsum(-1) == 0))[:, slots]
        text_slots = (words * (cached_arange(words.shape[-1], canvas.device) + 1)).amax(-1)
        signal = EndSignal(document[:, slots], turn[:, slots], text_slots.cpu())
        return signal.merged if self.ends == "any" else signal

    def horizon(self, lengths: LengthDistribution) -> Int[Tensor, "B"]:
        """Return the estimate of every row as a number of slots, between 1 and the limit."""
        estimated = self.estimate(lengths)
        owner, dtypes = f"the estimate {type(self.estimate).__name__} returned", {*FLOAT_DTYPES, torch.long}
        check_tensor(owner, estimated, lengths.tail.shape, dtypes, torch.device("cpu"), "a number of slots per row")
        if not bool(estimated.isfinite().all()):
            raise NumericError(f"{owner} {short_repr(estimated.tolist())}; it must return finite numbers of slots")
        return estimated.clamp(1, resolved_slots(self, self.limit)).ceil().long()

    def plan(self, probe: Probe) -> Plan:
        lengths = self.lengths(probe)
        return Plan(self.horizon(lengths), lengths)


@dataclass(frozen=True)
class Calibrated(LengthPolicy):
    """Plan with the calibration of the model, so that a share `coverage` of the answers fits.

    The calibration of a model (`lengths.json`) holds the limit, interpretation and estimate of its predictions and the
    ratios of real to predicted lengths. Predictions are multiplied by one of these ratios, chosen by rank (split
    conformal prediction): with probability `coverage` or more the plan is no shorter than the answer to a new prompt of
    the same kind, decoded on `limit` slots with the recipe of the calibration. A recipe with another unmask rule,
    commit rule, sampling or block size is rejected, and so are plain-text prompts after a calibration on chat messages,
    or vice versa. `family` selects the ratios of one family of tasks. `resolve` replaces this policy by a Survival.
    """

    name = "calibrated"
    cost_summary = "one probe"
    source = "ours; split conformal prediction (Vovk et al., 2005)"

    coverage: float = checked_field(0.9, check_number, above=0, below=1)
    family: str | None = checked_field(None, check_type, str, "a family's name, or None")

    def resolved(self, limits: ModelLimits) -> Survival:
        calibration = limits.calibration
        if calibration is None:
            raise SettingError(
                "Calibrated was given for a model without a calibration; run lastword calibrate, load the model with "
                "its file (calibration=..., on the command line --calibration), or use Survival()"
            )
        return Survival(
            limits.resolve(calibration.limit),
            calibration.bound(self.coverage, self.family),
            calibration.ends,
            calibration.interpretation,
        )

    def plan(self, probe: Probe) -> Plan:
        raise SettingError(
            "Calibrated was used before it was resolved for a model: decode with it in a Recipe, and let a policy of "
            "your own around it pass `resolved` on, as policies.length.wrappers.Wrapper does"
        )


@dataclass(frozen=True)
class SurvivalAtStep(LengthPolicy):
    """Decode `step` steps on a canvas of `length.limit` slots, then predict the length and crop.

    As in the paper's step ablation (table "length drift": steps 2, 5, 7 and 10 move the estimate by less than 10). The
    hazard of a slot that is already written is 1 for an end token and 0 for a word. Step 0 reads the first forward
    pass, which has the same canvas as the probe of Survival. Costs no probe, but `step` + 1 forward passes on the long
    canvas and the logits of the whole answer in each; unlike those of a probe, they include guidance and hooks.

    The crop keeps text: if a word was written beyond the predicted horizon and before any end token, the row ends with
    that word instead. To measure only the drift, apply `Survival(limit).interpret(step.prediction)` to each step of a
    Fixed(limit) decoding.
    """

    name = "survival-at-step"
    cost_summary = "no probe; `step` + 1 forward passes on the long canvas"
    source = "Kobyzev et al., 2026 (arXiv 2608.26374), step ablation"

    step: int = checked_field(5, check_int, minimum=0)
    length: Survival = checked_field(Survival(), check_type, Survival, "Survival(), with its limit, estimate and ends")

    @property
    def traits(self) -> LengthTraits:
        reads: Reads = "one step" if self.step else "answer"  # the first pass reads every slot anyway
        return LengthTraits(resizes="any time", reads=reads, max_slots=self.length.limit)

    def resolved(self, limits: ModelLimits) -> SurvivalAtStep:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.length.limit)))

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        at_step = clock.step == self.step
        if not bool(at_step.any()):
            return canvas, state
        predicted = self.length.horizon(self.length.interpret(prediction))
        horizon = torch.maximum(predicted.to(canvas.device), canvas.min_horizon)
        crops = at_step & prediction.covers_all(canvas.answer)
        return canvas.crop(torch.where(crops, horizon, canvas.horizon)), state
