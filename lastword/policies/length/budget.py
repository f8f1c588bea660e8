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

MOST_SLOTS = 20  # powers of two: a million


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

    passes: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("passes", "columns"):
            if getattr(self, name) is not None:
                check_int("Budget", name, getattr(self, name), minimum=1, maximum=MAX_COUNT)
        if self.passes is None and self.columns is None:
            raise SettingError(
                "Budget was given without a bound; say what it allows: passes=256, columns=100000 or both "
                "(on the command line budget:(default),passes=256)"
            )

    traits = LengthTraits(bounds_work=True)

    def plan(self, probe: Probe) -> Plan:
        plan = self.length.plan(probe)
        slots = torch.ones_like(plan.horizon)
        self._refuse(~self._pays(probe, slots), probe)
        for power in reversed(range(MOST_SLOTS)):
            more = slots + 2**power
            slots = torch.where(self._pays(probe, more), more, slots)
        most = slots if plan.max_new_tokens is None else torch.minimum(slots, plan.max_new_tokens)
        ends = torch.zeros_like(most) if plan.end_suffix is None else plan.end_suffix
        horizon = torch.minimum(plan.horizon, (most - ends).clamp(min=1))
        return replace(
            plan,
            horizon=horizon,
            end_suffix=torch.minimum(ends, most - horizon),
            max_new_tokens=most,
        )

    def _pays(self, probe: Probe, slots: Int[Tensor, "B"]) -> Bool[Tensor, "B"]:
        spent, most = probe.cost, probe.max_cost(slots)
        pays = torch.ones_like(slots, dtype=torch.bool)
        if self.passes is not None:
            pays = pays & (spent.forward_passes + most.forward_passes <= self.passes)
        if self.columns is not None:
            pays = pays & (spent.tokens_computed + most.tokens_computed <= self.columns)
        return pays

    def _refuse(self, broke: Bool[Tensor, "B"], probe: Probe) -> None:
        if not bool(broke.any()):
            return
        row = int(broke.long().argmax())
        one = probe.max_cost(torch.ones(probe.rows, dtype=torch.long))
        spent, more = probe.cost.row(row), one.row(row)
        raise SettingError(
            f"Budget(passes={self.passes}, columns={self.columns}) was given, but for prompt {row} the "
            f"plan alone took {spent.forward_passes} passes and {spent.tokens_computed} columns, and one "
            "slot may take "
            f"{more.forward_passes} and {more.tokens_computed} more: allow at least "
            f"{spent.forward_passes + more.forward_passes} "
            f"passes and {spent.tokens_computed + more.tokens_computed} columns, or plan with less, such as "
            "Survival(limit=64) or Fixed(64)"
        )
