"""Planning: predict the length of each prompt and lay out its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Columns
from lastword.canvas.cost import BatchCost, TokenCost
from lastword.canvas.tokens import PromptIds, TokenIds
from lastword.decoding.batch_state import BatchState, CanvasLayout, check_canvas, phase_of
from lastword.decoding.forward import Forward, Hooks, PassInputs
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan, check_plan
from lastword.recipe.recipe import Recipe

RESERVED_QUANTILE = 0.9  # memory is reserved for this quantile of the predicted length


class ModelProbe:
    """The forward pass over each prompt and masks that a length policy reads.

    It reads the plain model: guidance, hooks and end-token settings shape the answer, not the model's belief
    about its length. `max_passes` and `guided` describe the decoding to come, for `max_cost`.
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
        self.num_rows = len(prompts)
        self.cost = BatchCost.zeros(self.num_rows)
        self._prompts, self._ids = prompts, model.ids
        self._max_passes, self._branches = max_passes, 2 if guided else 1
        generators = RowGenerators([0] * self.num_rows)  # unused: a probe takes the most likely token
        self._forward = Forward(model, Sampling(), generators, exceed_max_seq_len=exceed_max_seq_len)

    def __call__(self, slots: int | Int[Tensor, "B"], rows: Bool[Tensor, "B"] | None = None) -> Prediction:
        horizon = torch.full((self.num_rows,), slots) if isinstance(slots, int) else slots
        canvas = Canvas.blank(self._prompts, horizon, self._ids)
        read = canvas.answer if rows is None else canvas.answer & rows[:, None]
        prediction, self.cost = self._forward(canvas, PassInputs(Columns.from_mask(read)), self.cost)
        return prediction

    def max_cost(self, slots: Int[Tensor, "B"]) -> BatchCost:
        """Return the most that decoding canvases of `slots` slots can cost, whatever the model predicts."""
        passes = torch.tensor([self._max_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        tokens = passes * width * self._branches
        return BatchCost(passes, tokens, tokens * width)


@dataclass(frozen=True, eq=False)
class PlannedRequest:
    """A prompt with its planned length, ready to join the running batch."""

    request_id: int
    prompt_ids: Tensor
    plan: Plan  # of one row
    probe_cost: TokenCost
    generators: RowGenerators  # of one row

    @cached_property
    def reserved_slots(self) -> int:
        """Number of slots to reserve: the planned horizon or the 0.9 quantile, whichever is larger."""
        return self.plan.reserved(RESERVED_QUANTILE)


def plan_lengths(
    model: MaskPredictor,
    recipe: Recipe,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: Sequence[int] | None = None,
    exceed_max_seq_len: bool = False,
) -> list[tuple[Plan, TokenCost]]:
    """Plan all prompts in one batch of probes and return each plan with its cost.

    `max_new_tokens` caps each row, whatever its length policy plans or grows to.
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
    """Return the state of the rows before their first forward pass, on the CPU."""
    plan = Plan.concat([request.plan for request in requests])
    canvas = plan.canvas([request.prompt_ids for request in requests], ids, layout.start)
    canvas = check_canvas(recipe.commit.prepare(canvas), recipe.commit)
    canvas = hooks.after(None, canvas)
    clock = Clock.start(canvas).tick(canvas, recipe.block)
    state = BatchState(
        canvas,
        clock,
        recipe.unmask.initial_state(canvas),
        plan.state,
        plan.max_new_tokens,
        BatchCost.zeros(len(requests)),
        phase_of(canvas, clock),
    )
    if layout.width is None:
        return state
    layout.check(canvas, recipe)
    return state.widened(layout.width)
