"""Budget: no more passes, or columns, than you can afford."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.errors import SettingError
from lastword.policies.length.policy import LengthTraits, Plan, Probe
from lastword.policies.length.wrapper import Wrapper
from lastword.validation import MAX_COUNT, check_int

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
