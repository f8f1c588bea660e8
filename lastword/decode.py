"""THE loop: from token ids to a finished canvas, one Step per forward pass.

It knows nothing of text. Everything that varies is a part of the recipe; streaming, traces, plots
and ablations consume Steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas import Canvas
from lastword.clock import Clock
from lastword.cost import Cost
from lastword.errors import SettingError
from lastword.forward import Forward
from lastword.hooks import Hooks
from lastword.length import Plan
from lastword.models.predictor import MaskPredictor
from lastword.prediction import Prediction
from lastword.recipe import Recipe
from lastword.sampling import Dice, Sampling


@dataclass(frozen=True, eq=False)
class Step:
    """The state after one forward pass of decoding.

    `prediction` holds the pass's logits: keep the steps you need, not a list of all of them.
    """

    clock: Clock
    canvas: Canvas
    chosen: Bool[Tensor, "B L"]  # masks of prediction.canvas the rules chose to fill in this pass
    prediction: Prediction
    plan: Plan
    probe_cost: Cost
    cost: Cost


def decode(
    model: MaskPredictor,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe = Recipe(),
    *,
    dice: Dice | None = None,
    hooks: Hooks = Hooks(),
    beyond_positions: bool = False,
) -> Iterator[Step]:
    """Decode a batch of prompts, given as token ids. Each row decodes as if it were alone."""
    recipe = recipe.fitted(model)
    dice = dice or Dice(range(len(prompts)), model.device)
    if len(dice) != len(prompts):
        raise SettingError(f"{len(dice)} dice were given for {len(prompts)} prompts; give one each")
    probe = ModelProbe(model, prompts, dice, recipe, beyond_positions=beyond_positions)
    plan = recipe.length.plan(probe)
    canvas = recipe.commit.prepare(plan.canvas(prompts, model.ids))
    canvas = hooks.after(None, canvas)
    forward = Forward(
        model, recipe.sampling, dice, hook=hooks.logits, beyond_positions=beyond_positions
    )
    unmask, clock, memory = (
        recipe.unmask.fresh(),
        Clock.start(len(prompts)),
        recipe.cache.open(canvas),
    )
    while canvas.masked.any():
        clock = clock.tick(canvas, recipe.block_slots)
        open = canvas.masked & clock.window.columns(canvas.width)
        sees = unmask.sees(canvas, clock)
        stale = recipe.cache.stale(canvas, clock) & sees
        read = (open | recipe.reads(canvas, clock)) & sees
        prediction = forward(canvas, read, sees=sees, stale=stale, memory=memory, step=clock.index)
        chosen = unmask.pick(prediction, open, clock)
        filled = canvas.write(chosen, prediction.tokens)
        ready = recipe.commit.ready(prediction, filled, clock)
        ready = ready & prediction.speaks_for(canvas.masked)
        ready = recipe.length.releases(ready, filled, prediction, clock)
        chosen = chosen | (ready[:, None] & canvas.masked)
        canvas = canvas.write(chosen, prediction.tokens).give_up(open, chosen)
        canvas = recipe.length.revise(canvas, prediction, clock)
        canvas = hooks.after(clock.index, canvas)
        yield Step(clock, canvas, chosen, prediction, plan, probe.cost, forward.cost)


class ModelProbe:
    """One forward pass over each prompt followed by masks, for a length policy to read.

    It reads the plain model: guidance, hooks and end-token controls shape the answer, not the
    model's belief about its length.
    """

    def __init__(
        self,
        model: MaskPredictor,
        prompts: Sequence[Sequence[int]],
        dice: Dice,
        recipe: Recipe = Recipe(),
        *,
        beyond_positions: bool = False,
    ) -> None:
        self.rows = len(prompts)
        self._prompts, self._ids, self._recipe = prompts, model.ids, recipe
        self._forward = Forward(model, Sampling(), dice, beyond_positions=beyond_positions)

    @property
    def cost(self) -> Cost:
        return self._forward.cost

    def __call__(
        self, slots: int | Int[Tensor, "B"], asking: Bool[Tensor, "B"] | None = None
    ) -> Prediction:
        canvas = self._blank(slots)
        read = canvas.answer if asking is None else canvas.answer & asking[:, None]
        return self._forward(canvas, read)

    def most(self, slots: Int[Tensor, "B"]) -> Cost:
        passes = torch.tensor([self._recipe.most_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        columns = passes * width * (2 if self._recipe.sampling.guidance else 1)
        return Cost(passes, columns, columns * width)

    def reserve(self, slots: int) -> None:
        self._forward.check_room(self._blank(slots))

    def _blank(self, slots: int | Int[Tensor, "B"]) -> Canvas:
        horizon = torch.full((self.rows,), slots) if isinstance(slots, int) else slots
        return Canvas.blank(self._prompts, horizon, self._ids)
