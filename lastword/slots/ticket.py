"""Ticket: a prompt whose length is planned and that waits for a slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost, Work
from lastword.canvas.ids import TokenIds
from lastword.length.policy import Plan, checked_plan
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.hooks import Hooks
from lastword.passes.probe import ModelProbe
from lastword.recipe.recipe import Recipe
from lastword.slots.layout import Layout
from lastword.slots.rows import Rows, checked_canvas, staged

RESERVED = 0.9  # of answers need no more memory than is reserved for them


@dataclass(frozen=True, eq=False)
class Ticket:
    """All that a row begins with. Begun anew it is the same row, but for what its dice drew."""

    number: int  # whatever whoever waits for it calls it
    prompt: Tensor
    plan: Plan  # of one row
    probe_cost: Work
    dice: Dice  # of one row

    @cached_property
    def reserved(self) -> int:
        """Slots that nine of ten such answers do not exceed, and no fewer than were planned."""
        return self.plan.reserved(RESERVED)


def planned(
    model: MaskPredictor,
    recipe: Recipe,
    prompts: Sequence[Tensor],
    *,
    most: Sequence[int] | None = None,
    beyond_positions: bool = False,
) -> list[tuple[Plan, Work]]:
    """Plan prompts together; for each the plan and what its probes cost.

    No row gets more slots than its `most`, whatever its policy planned or grows to.
    """
    probe = ModelProbe(
        model,
        prompts,
        most_passes=recipe.most_passes,
        guided=recipe.sampling.guidance > 0,
        beyond_positions=beyond_positions,
    )
    plan = checked_plan(recipe.length.plan(probe), recipe.length, len(prompts))
    if most is not None:
        plan = plan.at_most(torch.tensor(most))
    return [(plan.row(row), probe.cost.row(row)) for row in range(len(prompts))]


def begun(
    tickets: Sequence[Ticket], recipe: Recipe, layout: Layout, ids: TokenIds, hooks: Hooks
) -> Rows:
    """What the rows begin with, on the CPU."""
    plan = Plan.joined([ticket.plan for ticket in tickets])
    canvas = plan.canvas([ticket.prompt for ticket in tickets], ids, layout.start)
    canvas = checked_canvas(recipe.commit.prepare(canvas), recipe.commit)
    canvas = hooks.after(None, canvas)
    clock = Clock.start(canvas).tick(canvas, recipe.block)
    rows = Rows(
        canvas,
        clock,
        recipe.unmask.begin(canvas),
        plan.state,
        plan.most,
        Cost.nothing(len(tickets)),
        staged(canvas, clock),
    )
    if layout.width is None:
        return rows
    layout.check(canvas, recipe)
    return rows.widened(layout.width)
