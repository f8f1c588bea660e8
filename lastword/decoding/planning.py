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
from lastword.canvas.cost import BatchCost, TokenCost
from lastword.canvas.tokens import PromptIds, TokenIds
from lastword.decoding.batch_state import BatchState, check_canvas, phase_of
from lastword.decoding.forward import Forward
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import CanvasLayout
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan, check_plan
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
        max_passes: Callable[[int], int] = lambda slots: slots,
        guided: bool = False,
        exceed_max_seq_len: bool = False,
    ) -> None:
        self.rows = len(prompts)
        self._prompts, self._ids = prompts, model.ids
        self._max_passes, self._branches = max_passes, 2 if guided else 1
        dice = RowGenerators([0] * self.rows)  # the plain model's likeliest token: nothing is drawn
        self._forward = Forward(model, Sampling(), dice, exceed_max_seq_len=exceed_max_seq_len)
        self.cost = BatchCost.zeros(self.rows)

    def __call__(self, slots: int | Int[Tensor, "B"], rows: Bool[Tensor, "B"] | None = None) -> Prediction:
        canvas = self._blank(slots)
        read = canvas.answer if rows is None else canvas.answer & rows[:, None]
        prediction, self.cost = self._forward(canvas, read, self.cost)
        return prediction

    def max_cost(self, slots: Int[Tensor, "B"]) -> BatchCost:
        passes = torch.tensor([self._max_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        columns = passes * width * self._branches
        return BatchCost(passes, columns, columns * width)

    def _blank(self, slots: int | Int[Tensor, "B"]) -> Canvas:
        horizon = torch.full((self.rows,), slots) if isinstance(slots, int) else slots
        return Canvas.blank(self._prompts, horizon, self._ids)


RESERVED_QUANTILE = 0.9  # of answers need no more memory than is reserved for them


@dataclass(frozen=True, eq=False)
class PlannedRequest:
    """All that a row begins with. Begun anew it is the same row, but for what its dice drew."""

    request_id: int  # whatever whoever waits for it calls it
    prompt_ids: Tensor
    plan: Plan  # of one row
    probe_cost: TokenCost
    generators: RowGenerators  # of one row

    @cached_property
    def reserved_slots(self) -> int:
        """Slots that nine of ten such answers do not exceed, and no fewer than were planned."""
        return self.plan.reserved(RESERVED_QUANTILE)


def plan_lengths(
    model: MaskPredictor,
    recipe: Recipe,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: Sequence[int] | None = None,
    exceed_max_seq_len: bool = False,
) -> list[tuple[Plan, TokenCost]]:
    """Plan prompts together; for each the plan and what its probes cost.

    No row gets more slots than its `most`, whatever its policy planned or grows to.
    """
    probe = ModelProbe(
        model,
        prompts,
        max_passes=recipe.max_passes,
        guided=recipe.sampling.guidance > 0,
        exceed_max_seq_len=exceed_max_seq_len,
    )
    plan = check_plan(recipe.length.plan(probe), recipe.length, len(prompts))
    if max_new_tokens is not None:
        plan = plan.capped(torch.tensor(max_new_tokens))
    return [(plan.row(row), probe.cost.row(row)) for row in range(len(prompts))]


def initial_state(
    requests: Sequence[PlannedRequest],
    recipe: Recipe,
    layout: CanvasLayout,
    ids: TokenIds,
    hooks: Hooks,
) -> BatchState:
    """What the rows begin with, on the CPU."""
    plan = Plan.concat([ticket.plan for ticket in requests])
    canvas = plan.canvas([ticket.prompt_ids for ticket in requests], ids, layout.start)
    canvas = check_canvas(recipe.commit.prepare(canvas), recipe.commit)
    canvas = hooks.after(None, canvas)
    clock = Clock.start(canvas).tick(canvas, recipe.block)
    rows = BatchState(
        canvas,
        clock,
        recipe.unmask.begin(canvas),
        plan.state,
        plan.max_new_tokens,
        BatchCost.zeros(len(requests)),
        phase_of(canvas, clock),
    )
    if layout.width is None:
        return rows
    layout.check(canvas, recipe)
    return rows.widened(layout.width)
