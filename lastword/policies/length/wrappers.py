"""Length policies that wrap another policy: StopAtEnd, GrowWhenFull and Budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.canvas.columns import first_true
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    plan_with,
    resolved_slots,
    revise_with,
)
from lastword.policies.length.survival import Survival
from lastword.validation import MAX_COUNT, check_int, check_type, checked_field

MAX_WRAPPERS = 8  # there are three wrappers, and none is needed twice


@dataclass(frozen=True)
class Wrapper(LengthPolicy):
    """A policy that plans with `length` and changes the result; its state is that of `length`."""

    length: LengthPolicy = checked_field(
        Survival(), check_type, LengthPolicy, "a length policy, such as Survival() or Fixed()"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(1 for _ in policy_layers(self)) > MAX_WRAPPERS:
            raise SettingError(
                f"{type(self).__name__} was put around {MAX_WRAPPERS} policies; nest at most {MAX_WRAPPERS}"
            )

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        return plan_with(self.length, probe)

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        return revise_with(self.length, canvas, prediction, clock, state)


def policy_layers(policy: LengthPolicy) -> Iterator[LengthPolicy]:
    """Yield a policy and the policies that it wraps, outermost first; the last one makes the plan."""
    yield policy
    if isinstance(policy, Wrapper):
        yield from policy_layers(policy.length)


def combined_traits(policy: LengthPolicy) -> LengthTraits:
    """Return the traits of a policy combined with those of all policies that it wraps."""
    return reduce(LengthTraits.with_inner, (layer.traits for layer in policy_layers(policy)))


@dataclass(frozen=True)
class StopAtEnd(Wrapper):
    """Plan with `length`; when no mask is left before the first end token, remove the slots after it.

    The row is then finished and takes part in no further pass. Costs nothing (DPad, dInfer and others have it built in,
    in units of blocks). An end token may be written before the text to its left; decoding then continues until that
    text is complete. If the whole canvas is one block, this is the usual case and little is saved, so recipes without a
    block size get blocks of 32.
    """

    name = "stop-at-end"
    cost_summary = "nothing"
    source = "DPad, dInfer and others"
    traits = LengthTraits(resizes="between blocks", needs_blocks=True, capturable=True)

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        end = first_true(canvas.ended)
        done = end < first_true(canvas.masked)
        return canvas.crop(torch.where(done, end + 1 - canvas.start, canvas.horizon)), state


@dataclass(frozen=True)
class GrowWhenFull(Wrapper):
    """Plan with `length`; append `increment` masks when at most one block is left and no end token is written.

    A prediction that is too short then costs another block instead of a truncated answer. A row grows when a block is
    complete and at most one more is left, so that masks follow the last planned block while it is filled; if the canvas
    ends with that block, models tend to shorten the answer to fit. Every row that has not ended thus has a spare block;
    StopAtEnd(GrowWhenFull(Survival())) removes it once the end is written, so it made passes wider but did not add
    one. Without blocks, a row grows when it is full.

    No row grows beyond `limit` slots (unset: the limit of the inner policy, or of the model; if the plan already takes
    all of that, one increment more). Rows grow between blocks only, where caches start anew, and only the logits of the
    block are needed. Costs no probe.
    """

    name = "grow-when-full"
    cost_summary = "no probe; forward passes are up to one block wider"

    increment: int = checked_field(32, check_int, minimum=1)
    limit: int | None = checked_field(None, check_int, minimum=1)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(resizes="between blocks", grows=True, max_slots=self.limit, capturable=True)

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        inner = self.length.resolved(limits)
        inner_limits = (layer.traits.max_slots for layer in policy_layers(inner))
        inner_limit = next((slots for slots in inner_limits if slots is not None), None)
        limit = limits.resolve(inner_limit if self.limit is None else self.limit)
        min_slots = combined_traits(inner).min_slots
        if min_slots >= limit and limits.available_slots is not None:
            return inner  # no row could ever grow
        if min_slots >= limit and self.limit is None:
            limit = min_slots + self.increment
        return replace(self, length=inner, limit=limit)

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        window = clock.window
        complete = ~(canvas.masked & window.columns(canvas.width)).any(-1)
        at_most_a_block = canvas.masked.sum(-1) <= window.last - window.first
        took_part = prediction.columns.read.any(-1)  # a row without a step of its own does not grow
        grows = complete & at_most_a_block & took_part & ~canvas.ended.any(-1)
        room = (resolved_slots(self, self.limit) - canvas.horizon).clamp(0, self.increment)
        return canvas.extend(torch.where(grows, room, 0)), state


SLOT_BITS = 20  # plans have fewer than 2**20 slots


@dataclass(frozen=True)
class Budget(Wrapper):
    """Plan with `length`, within `max_passes` forward passes and `max_tokens_computed` tokens, probe included.

    A guarantee, not an estimate: it assumes the most passes that the unmask rule may need, as many as its schedule has
    or one per slot if the model decides. Every pass counts the full width of prompt and canvas, twice with guidance; a
    cache only lowers the cost. Each row has its own budget. Wrapped and wrapping policies may lengthen a row up to the
    same bound; as this restarts schedules, one pass per slot is then assumed.

    At least one bound is required. An answer that needs more is reported as truncated. A budget that does not cover a
    single slot is rejected, and so are policies that resize at any time, because the slots that they remove were
    already computed.
    """

    name = "budget"
    cost_summary = "nothing"
    traits = LengthTraits(bounds_cost=True, capturable=True)

    max_passes: int | None = checked_field(None, check_int, minimum=1, maximum=MAX_COUNT)
    max_tokens_computed: int | None = checked_field(None, check_int, minimum=1, maximum=MAX_COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_passes is None and self.max_tokens_computed is None:
            raise SettingError(
                "Budget was given without a bound; set max_passes=256, max_tokens_computed=100000 or both (on the "
                "command line budget:(default),max_passes=256)"
            )

    def plan(self, probe: Probe) -> Plan:
        plan = plan_with(self.length, probe)
        slots = torch.ones_like(plan.horizon)
        affordable = self._affordable(probe, slots)
        if not bool(affordable.all()):
            row = int(affordable.long().argmin())
            spent, slot = probe.cost.row(row), probe.max_cost(slots).row(row)
            raise SettingError(
                f"Budget(max_passes={self.max_passes}, max_tokens_computed={self.max_tokens_computed}) was given, but "
                f"planning prompt {row} took {spent.forward_passes} passes and {spent.tokens_computed} tokens, and "
                f"one slot may take {slot.forward_passes} and {slot.tokens_computed} more: allow at least "
                f"{spent.forward_passes + slot.forward_passes} passes and "
                f"{spent.tokens_computed + slot.tokens_computed} tokens, or use a cheaper plan, such as "
                "Survival(limit=64) or Fixed(64)"
            )
        for power in reversed(range(SLOT_BITS)):
            more = slots + 2**power
            slots = torch.where(self._affordable(probe, more), more, slots)
        cap = slots if plan.max_new_tokens is None else torch.minimum(slots, plan.max_new_tokens)
        suffix = torch.zeros_like(cap) if plan.end_suffix is None else plan.end_suffix
        horizon = torch.minimum(plan.horizon, (cap - suffix).clamp(min=1))
        suffix = torch.minimum(suffix, cap - horizon)
        return replace(plan, horizon=horizon, end_suffix=suffix, max_new_tokens=cap)

    def _affordable(self, probe: Probe, slots: Int[Tensor, "B"]) -> Bool[Tensor, "B"]:
        spent, worst = probe.cost, probe.max_cost(slots)
        affordable = torch.ones_like(slots, dtype=torch.bool)
        if self.max_passes is not None:
            affordable &= spent.forward_passes + worst.forward_passes <= self.max_passes
        if self.max_tokens_computed is not None:
            affordable &= spent.tokens_computed + worst.tokens_computed <= self.max_tokens_computed
        return affordable
