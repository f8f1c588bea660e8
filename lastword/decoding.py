"""THE loop: from token ids to a finished canvas, one Step per forward pass.

It knows nothing of text. Everything that varies is a part of the recipe; streaming, traces, plots
and ablations consume Steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost
from lastword.errors import SettingError
from lastword.length import Plan
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.forward import Forward
from lastword.passes.hooks import Hooks
from lastword.passes.prediction import Prediction
from lastword.passes.probe import ModelProbe
from lastword.recipe.recipe import Recipe


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
    probe = ModelProbe(
        model,
        prompts,
        most_passes=recipe.most_passes,
        guided=recipe.sampling.guidance > 0,
        beyond_positions=beyond_positions,
    )
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
        prediction = forward(canvas, read, sees=sees, stale=stale, memory=memory, step=clock.step)
        chosen = unmask.pick(prediction, open, clock)
        filled = canvas.write(chosen, prediction.tokens)
        ready = recipe.commit.ready(prediction, filled, clock)
        ready = ready & prediction.speaks_for(canvas.masked)
        ready = recipe.length.releases(ready, filled, prediction, clock)
        chosen = chosen | (ready[:, None] & canvas.masked)
        canvas = canvas.write(chosen, prediction.tokens).give_up(open, chosen)
        canvas = recipe.length.revise(canvas, prediction, clock)
        canvas = hooks.after(clock.step, canvas)
        yield Step(clock, canvas, chosen, prediction, plan, probe.cost, forward.cost)
