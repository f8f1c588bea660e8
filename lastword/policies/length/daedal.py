"""Resizer: the shape shared by policies that start small and resize the canvas in any pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import first_true
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    check_optional_slots,
    resolved_slots,
)
from lastword.validation import check_int, check_number

DEFAULT_INITIAL = 64  # slots to begin with, of both papers


@dataclass(frozen=True)
class Resizer(LengthPolicy):
    """Begins with `initial` slots and never has more than `limit`; decides by the whole answer.

    Without numbers: 64, and as many as the model is made for.
    """

    initial: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_optional_slots(name, "initial", self.initial)
        check_optional_slots(name, "limit", self.limit)
        if self.initial is not None and self.limit is not None and self.initial > self.limit:
            raise SettingError(
                f"{name}(initial={self.initial}, limit={self.limit}) was given; it starts at "
                "`initial` and grows to `limit`: raise the limit or start with fewer slots"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(
            resizes="any time", reads="answer", grows=True, uses_confidence=True, max_slots=self.limit
        )

    def resolved(self, limits: ModelLimits) -> Resizer:
        limit = max(limits.resolve(self.limit), 0 if self.limit else limits.resolve(self.initial or 1))
        initial = min(DEFAULT_INITIAL, limit) if self.initial is None else limits.resolve(self.initial)
        return replace(self, initial=initial, limit=limit)


def end_confidence(prediction: Prediction, count: int) -> Float[Tensor, "B"]:
    """Mean end-token probability of the last `count` slots at which the model would end.

    Slots where another token is likelier are passed over, written slots count as well, and slots that
    are missing to `count` count as 0. This is DAEDAL's code; its paper says "the last `count` slots".
    Needs logits of the whole answer.
    """
    end = prediction.canvas.ids.end
    ending = (prediction.argmax_tokens == end) & prediction.columns.read
    from_the_right = ending.flip(-1).cumsum(-1).flip(-1)
    counted = ending & (from_the_right <= count)
    return prediction.probability_of(end).masked_fill(~counted, 0).sum(-1) / count


@dataclass(frozen=True)
class Daedal(Resizer):
    """Start with `initial` slots; grow while the end confidence is low, before and while decoding.

    DAEDAL (Li et al., 2025). Stage 1 probes canvases `by` slots longer each time until the mean
    end-token probability of the last `window` ending slots reaches `enough`; then `window` // 2 end
    tokens are written behind (in the code, not in the paper). Stage 2 acts after every pass in which
    that confidence is below `keep_growing`: the least confident mask of the block, if below `lost`,
    becomes `by` masks. No row gets longer than `limit`, where its right end falls off.

    Costs one pass over the whole canvas per probe, about 29 for an answer of 300 slots; stage 2 costs
    no pass, but needs logits of the whole answer in each. The fill rule of the paper is
    AboveThreshold(0.9) with block=32, which also fills a candidate at exactly 0.9; the released code
    fills strictly above it. Where else we differ from the released code: a row at its limit is
    not probed once more, a row of a batch is neither probed nor grown for the sake of another, no
    insertion pushes written text over the limit, and where the model proposes the mask token the
    next best token competes instead of none (Sampling).
    """

    name: ClassVar[str] = "daedal"
    cost_summary: ClassVar[str] = (
        "a probe per `by` slots grown at first; logits of the whole answer in every pass"
    )
    source: ClassVar[str] = "DAEDAL (Li et al., 2025, arXiv 2508.00819)"

    expansion_factor: int = 8
    eos_window: int = 32
    eos_threshold: float = 0.5
    expand_threshold: float = 0.9
    low_threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("expansion_factor", "eos_window"):
            check_int("Daedal", name, getattr(self, name), minimum=1)
        for name in ("eos_threshold", "expand_threshold", "low_threshold"):
            check_number("Daedal", name, getattr(self, name), minimum=0, maximum=1)

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

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        columns, limit = prediction.columns, resolved_slots(self, self.limit)
        left = columns.gather(canvas.masked & clock.window.columns(canvas.width))
        doubt = prediction.confidence.masked_fill(~left, torch.inf)
        lowest = doubt.amin(-1)
        grows = (lowest < self.low_threshold) & (canvas.horizon < limit)
        grows = grows & prediction.covers_all(canvas.answer)
        if not bool(grows.any()):
            return canvas, state  # most passes: what follows reads every logit of the answer
        grows = grows & (end_confidence(prediction, self.eos_window) < self.expand_threshold)
        count = (limit - canvas.min_horizon).clamp(0, self.expansion_factor - 1)
        first = first_true(doubt == lowest[:, None]).clamp(max=doubt.shape[1] - 1)
        column = columns.index.gather(1, first[:, None])[:, 0]
        full = torch.full_like(canvas.horizon, limit)
        return canvas.insert_masks(column, torch.where(grows, count, 0)).crop(full), state
