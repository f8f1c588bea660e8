"""GrowWhenFull: an answer that outgrows its plan gets more room."""

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
    check_optional_slots,
    resolved_slots,
)
from lastword.policies.length.wrapper import Wrapper, combined_traits, policy_layers
from lastword.validation import check_int


@dataclass(frozen=True)
class GrowWhenFull(Wrapper):
    """Plan with `length`; when the last block comes up and no end token is written, add `by` masks.

    An under-prediction then costs a block and not an answer. With blocks, a row grows when a block is
    complete and at most one more is left, so that the model writes its last planned block knowing that
    there is room behind it: on a canvas that ends there it would rather squeeze its answer in. Nobody
    can know at that point whether the last block will bring the end, so every row that has not ended
    keeps a block ahead; StopAtEnd(GrowWhenFull(Survival())) drops it once the end is written, and it
    has then cost width, no pass. Without blocks, or with one for the whole answer, a row
    grows when it is full, which is the first time that "no end token" is certain.

    An answer that never ends stops at `limit` slots; without one, at the limit of the policy inside, or
    at what the model is made for, or one growth above a plan that takes all of that. Rows grow between
    blocks only, where caches start anew, and no logits are read beyond those of the block. Costs no probe.
    """

    name: ClassVar[str] = "grow-when-full"
    cost_summary: ClassVar[str] = "no probe; one block of width ahead of a row that has not ended"
    source: ClassVar[str] = "ours"

    increment: int = 32
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("GrowWhenFull", "increment", self.increment, minimum=1)
        check_optional_slots("GrowWhenFull", "limit", self.limit)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(resizes="between blocks", grows=True, max_slots=self.limit, capturable=True)

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        inner = self.length.resolved(limits)
        inside = next(
            (t.max_slots for p in policy_layers(inner) if (t := p.traits).max_slots is not None),
            None,
        )
        limit = limits.resolve(inside if self.limit is None else self.limit)
        least = combined_traits(inner).min_slots
        if least >= limit and limits.available_slots is not None:
            return inner  # there is no room to grow in
        if least >= limit and self.limit is None:
            limit = least + self.increment
        return replace(self, length=inner, limit=limit)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        window = clock.window
        complete = ~(canvas.masked & window.columns(canvas.width)).any(-1)
        at_most_a_block = canvas.masked.sum(-1) <= window.last - window.first
        worked_on = prediction.columns.read.any(-1)  # a row at the bound of a budget asks once
        grows = complete & at_most_a_block & worked_on & ~canvas.ended.any(-1)
        room = (resolved_slots(self, self.limit) - canvas.horizon).clamp(0, self.increment)
        return canvas.extend(torch.where(grows, room, 0)), state
