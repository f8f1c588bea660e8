"""Length policies that wrap another policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
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
from lastword.policies.length.survival import Survival
from lastword.validation import MAX_COUNT, check_int, check_type

MAX_WRAPPERS = 8  # there are three wrappers, and none is needed twice


@dataclass(frozen=True)
class Wrapper(LengthPolicy):
    """Plans as `length` does and has its say after `length` had its own.

    It carries no state of its own: the state is that of `length`, which the loop may also ask alone.
    """

    length: LengthPolicy = Survival()

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_type(
            name,
            "length",
            self.length,
            LengthPolicy,
            "a length policy, such as Survival() or Fixed()",
        )
        if sum(1 for _ in policy_layers(self)) > MAX_WRAPPERS:
            raise SettingError(
                f"{name} was put around {MAX_WRAPPERS} policies; no more than {MAX_WRAPPERS} go together"
            )

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        return self.length.plan(probe)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        return self.length.revise(canvas, prediction, clock, state)


def policy_layers(policy: LengthPolicy) -> Iterator[LengthPolicy]:
    """A policy and those it wraps, from the outside in; the last one plans."""
    yield policy
    if isinstance(policy, Wrapper):
        yield from policy_layers(policy.length)


def combined_traits(policy: LengthPolicy) -> LengthTraits:
    """What holds for a policy together with those it wraps."""
    return reduce(LengthTraits.with_inner, (layer.traits for layer in policy_layers(policy)))


@dataclass(frozen=True)
class StopAtEnd(Wrapper):
    """Plan with `length`; once no mask is left before the first end token, drop what lies behind it.

    What lies behind the first end token is no text, so the row is done: no mask is left, and it takes part
    in no further pass. Costs nothing, and is the cheapest length control there is (DPad, dInfer and others
    have it built in, by whole blocks). An end token may be written before the text to its left, which is
    then waited for. In one block for the whole canvas it mostly is, so that little would be saved: a
    recipe that gives no block has blocks of 32.
    """

    name: ClassVar[str] = "stop-at-end"
    cost_summary: ClassVar[str] = "nothing; saves every pass behind the end"
    source: ClassVar[str] = "built into DPad, dInfer and others"

    traits = LengthTraits(resizes="between blocks", needs_blocks=True, capturable=True)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        end = first_true(canvas.ended)
        done = end < first_true(canvas.masked)
        return canvas.crop(torch.where(done, end + 1 - canvas.start, canvas.horizon)), state


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


SLOT_BITS = 20  # powers of two: a million


@dataclass(frozen=True)
class Budget(Wrapper):
    """Plan with `length`, but no longer than `passes` passes or `columns` columns pay for, probe included.

    A promise, not an estimate: it counts what the unmask rule may need at worst, which is what the
    schedule says where there is one and a pass per slot where the model decides. Columns count
    every pass at the full width of prompt and canvas, twice with guidance; a cache only saves. Each
    row has a budget of its own. What lies inside or around may grow up to the same bound and not
    beyond; with growth a schedule's count is no longer sure, and a pass per slot is assumed.

    It needs a bound: passes, columns or both. An answer that needed more is cut and says so. Where not one
    slot can be paid for, the budget is refused; policies that resize in any pass are refused too, since
    slots they take back were paid for. Costs nothing.
    """

    name: ClassVar[str] = "budget"
    cost_summary: ClassVar[str] = "nothing; bounds the passes and columns of everything else"
    source: ClassVar[str] = "ours"

    max_passes: int | None = None
    max_tokens_computed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_passes", "max_tokens_computed"):
            if getattr(self, name) is not None:
                check_int("Budget", name, getattr(self, name), minimum=1, maximum=MAX_COUNT)
        if self.max_passes is None and self.max_tokens_computed is None:
            raise SettingError(
                "Budget was given without a bound; set max_passes=256, max_tokens_computed=100000 or both "
                "(on the command line budget:(default),max_passes=256)"
            )

    traits = LengthTraits(bounds_cost=True, capturable=True)

    def plan(self, probe: Probe) -> Plan:
        plan = self.length.plan(probe)
        slots = torch.ones_like(plan.horizon)
        self._check_affordable(self._affordable(probe, slots), probe)
        for power in reversed(range(SLOT_BITS)):
            more = slots + 2**power
            slots = torch.where(self._affordable(probe, more), more, slots)
        most = slots if plan.max_new_tokens is None else torch.minimum(slots, plan.max_new_tokens)
        ends = torch.zeros_like(most) if plan.end_suffix is None else plan.end_suffix
        horizon = torch.minimum(plan.horizon, (most - ends).clamp(min=1))
        return replace(
            plan,
            horizon=horizon,
            end_suffix=torch.minimum(ends, most - horizon),
            max_new_tokens=most,
        )

    def _affordable(self, probe: Probe, slots: Int[Tensor, "B"]) -> Bool[Tensor, "B"]:
        spent, most = probe.cost, probe.max_cost(slots)
        pays = torch.ones_like(slots, dtype=torch.bool)
        if self.max_passes is not None:
            pays = pays & (spent.forward_passes + most.forward_passes <= self.max_passes)
        if self.max_tokens_computed is not None:
            pays = pays & (spent.tokens_computed + most.tokens_computed <= self.max_tokens_computed)
        return pays

    def _check_affordable(self, affordable: Bool[Tensor, "B"], probe: Probe) -> None:
        """Raise SettingError if a row cannot pay for one slot."""
        if bool(affordable.all()):
            return
        row = int(affordable.long().argmin())
        spent = probe.cost.row(row)
        slot = probe.max_cost(torch.ones(probe.num_rows, dtype=torch.long)).row(row)
        raise SettingError(
            f"Budget(max_passes={self.max_passes}, max_tokens_computed={self.max_tokens_computed}) was "
            f"given, but planning prompt {row} took {spent.forward_passes} passes and "
            f"{spent.tokens_computed} tokens, and one slot may take {slot.forward_passes} and "
            f"{slot.tokens_computed} more: allow at least "
            f"{spent.forward_passes + slot.forward_passes} passes and "
            f"{spent.tokens_computed + slot.tokens_computed} tokens, or plan with less, such as "
            "Survival(limit=64) or Fixed(64)"
        )
