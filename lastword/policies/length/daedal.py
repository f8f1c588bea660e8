"""Daedal, and the base class of policies that start small and resize the canvas in any pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.canvas.columns import first_true
from lastword.decoding.prediction import Prediction
from lastword.policies.length.policy import BoundedPolicy, LengthTraits, Plan, Probe, resolved_slots
from lastword.validation import check_int, check_number, checked_field


@dataclass(frozen=True)
class Resizer(BoundedPolicy):
    """A policy that may resize a row after any pass, from the model's predictions for the whole answer.

    An unset `initial` becomes 64, and an unset `limit` the model's.
    """

    default_initial = 64  # as in the papers of Daedal and RhoEos

    initial: int | None = checked_field(None, check_int, minimum=1)
    limit: int | None = checked_field(None, check_int, minimum=1)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(resizes="any time", reads="answer", grows=True, uses_confidence=True, max_slots=self.limit)


def end_confidence(prediction: Prediction, count: int) -> Float[Tensor, "B"]:
    """Return the mean end-token probability of the last `count` slots whose most likely token is the end token.

    Written slots are included; if there are fewer such slots than `count`, the missing ones count as 0. This is what
    DAEDAL's code does; its paper says "the last `count` slots". Needs logits of the whole answer.
    """
    end = prediction.canvas.ids.end
    ending = (prediction.argmax_tokens == end) & prediction.columns.read
    from_the_right = ending.flip(-1).cumsum(-1).flip(-1)
    counted = ending & (from_the_right <= count)
    return prediction.probability_of(end).masked_fill(~counted, 0).sum(-1) / count


@dataclass(frozen=True)
class Daedal(Resizer):
    """Start with `initial` slots; grow while the end confidence is low, before and during decoding.

    DAEDAL (Li et al., 2025). Stage 1 probes canvases that are longer by `expansion_factor` slots each time, until the
    mean end-token probability of the last `eos_window` ending slots reaches `eos_threshold`; then `eos_window` // 2 end
    tokens are written after the answer (in the code, not in the paper). Stage 2 acts after every pass in which that
    confidence is below `expand_threshold`: the least confident mask of the block becomes `expansion_factor` masks if
    its confidence is below `low_threshold`. Slots beyond `limit` are dropped at the right end.

    Costs one probe of the whole canvas per expansion, about 29 for an answer of 300 slots; stage 2 costs no forward
    pass but needs the logits of the whole answer. The paper decodes with AboveThreshold(0.9) and block=32; the released
    code requires a confidence strictly above 0.9. Other differences from the released code: a row at its limit is not
    probed once more; each row of a batch is probed and grown independently; no insertion pushes written text beyond the
    limit; and where the model proposes the mask token, the next best token is used instead (see Sampling).
    """

    name = "daedal"
    cost_summary = "a probe per expansion; logits of the whole answer"
    source = "DAEDAL (Li et al., 2025, arXiv 2508.00819)"

    expansion_factor: int = checked_field(8, check_int, minimum=1)
    eos_window: int = checked_field(32, check_int, minimum=1)
    eos_threshold: float = checked_field(0.5, check_number, minimum=0, maximum=1)
    expand_threshold: float = checked_field(0.9, check_number, minimum=0, maximum=1)
    low_threshold: float = checked_field(0.1, check_number, minimum=0, maximum=1)

    def plan(self, probe: Probe) -> Plan:
        slots, limit = resolved_slots(self, self.initial), resolved_slots(self, self.limit)
        horizon = torch.full((probe.num_rows,), slots)
        growing = torch.ones(probe.num_rows, dtype=torch.bool)
        while slots < limit and bool(growing.any()):
            prediction = probe(slots, growing)
            growing = growing & (end_confidence(prediction, self.eos_window) < self.eos_threshold)
            slots = min(slots + self.expansion_factor, limit)
            horizon = torch.where(growing, slots, horizon)
        return Plan(horizon, end_suffix=(limit - horizon).clamp(max=self.eos_window // 2))

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        columns, limit = prediction.columns, resolved_slots(self, self.limit)
        open_masks = columns.gather(canvas.masked & clock.window.columns(canvas.width))
        confidence = prediction.confidence.masked_fill(~open_masks, torch.inf)
        lowest = confidence.amin(-1)
        grows = (lowest < self.low_threshold) & (canvas.horizon < limit)
        grows = grows & prediction.covers_all(canvas.answer)
        if not bool(grows.any()):
            return canvas, state  # the usual case; the end confidence below needs every logit of the answer
        grows = grows & (end_confidence(prediction, self.eos_window) < self.expand_threshold)
        count = (limit - canvas.min_horizon).clamp(0, self.expansion_factor - 1)
        first = first_true(confidence == lowest[:, None]).clamp(max=confidence.shape[1] - 1)
        column = columns.index.gather(1, first[:, None])[:, 0]
        full = torch.full_like(canvas.horizon, limit)
        return canvas.insert_masks(column, torch.where(grows, count, 0)).crop(full), state
