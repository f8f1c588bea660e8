"""Planning: predict the length of each prompt and lay out its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost, Work
from lastword.canvas.tokens import PromptIds, TokenIds
from lastword.decoding.batch_state import Rows, checked_canvas, staged
from lastword.decoding.forward import Forward
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import Layout
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import Dice, Sampling
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan, checked_plan
from lastword.recipe.recipe import Recipe


class ModelProbe:
    """One forward pass over each prompt followed by masks, for a length policy to read.

    It reads the plain model: guidance, hooks and end-token controls shape the answer, not the
    model's belief about its length. `most_passes` and `guided` are those of the decoding to come.
    """

    def __init__(
        self,
        model: MaskPredictor,
        prompts: Sequence[PromptIds],
        *,
        most_passes: Callable[[int], int] = lambda slots: slots,
        guided: bool = False,
        beyond_positions: bool = False,
    ) -> None:
        self.rows = len(prompts)
        self._prompts, self._ids = prompts, model.ids
        self._most_passes, self._branches = most_passes, 2 if guided else 1
        dice = Dice([0] * self.rows)  # the plain model's likeliest token: nothing is drawn
        self._forward = Forward(model, Sampling(), dice, beyond_positions=beyond_positions)
        self.cost = Cost.nothing(self.rows)

    def __call__(
        self, slots: int | Int[Tensor, "B"], asking: Bool[Tensor, "B"] | None = None
    ) -> Prediction:
        canvas = self._blank(slots)
        read = canvas.answer if asking is None else canvas.answer & asking[:, None]
        prediction, self.cost = self._forward(canvas, read, self.cost)
        return prediction

    def most(self, slots: Int[Tensor, "B"]) -> Cost:
        passes = torch.tensor([self._most_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        columns = passes * width * self._branches
        return Cost(passes, columns, columns * width)

    def _blank(self, slots: int | Int[Tensor, "B"]) -> Canvas:
        horizon = torch.full((self.rows,), slots) if isinstance(slots, int) else slots
        return Canvas.blank(self._prompts, horizon, self._ids)


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
