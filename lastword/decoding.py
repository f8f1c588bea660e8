"""THE loop: from token ids to a finished canvas, one Step per forward pass.

It knows nothing of text. Everything that varies is a part of the recipe; streaming, traces, plots
and ablations consume Steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, checked_prompts
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost
from lastword.canvas.ids import PromptIds
from lastword.canvas.state import State
from lastword.checks import check_choice, check_type
from lastword.errors import SettingError, WrongTypeError
from lastword.length.policy import LengthTraits, Plan, checked_plan
from lastword.length.wrapper import layers, traits_of
from lastword.models.predictor import MaskPredictor, check_model
from lastword.passes.dice import Dice
from lastword.passes.forward import Forward
from lastword.passes.hooks import Hooks
from lastword.passes.prediction import Prediction
from lastword.passes.probe import ModelProbe
from lastword.recipe.recipe import Recipe
from lastword.recipe.settling import settle
from lastword.unmask.rule import checked_choice

__all__ = ["Step", "decode"]


@dataclass(frozen=True, eq=False)
class Step:
    """The state after one step of decoding: a forward pass, a choice, a write, a revision.

    `prediction` holds the pass's logits: keep the steps you need, not a list of all of them.
    """

    clock: Clock
    canvas: Canvas
    chosen: Bool[Tensor, "B L"]  # masks of prediction.canvas the rules chose to fill in this step
    prediction: Prediction
    plan: Plan
    probe_cost: Cost
    cost: Cost
    recipe: Recipe  # as it was settled


def decode(
    model: MaskPredictor,
    prompts: Sequence[PromptIds],
    recipe: Recipe = Recipe(),
    *,
    dice: Dice | None = None,
    hooks: Hooks = Hooks(),
    beyond_positions: bool = False,
    in_chat: Collection[bool | None] = (),
) -> Iterator[Step]:
    """Decode a batch of prompts, given as token ids. Each row decodes as if it were alone.

    `in_chat` says whether the prompts went through the chat template, for a calibration to agree with.
    """
    check_model(model)
    recipe = Recipe.checked(recipe)
    Hooks.check("decode", hooks)
    check_choice("decode", "beyond_positions", beyond_positions, True, False)
    if dice is not None:
        check_type("decode", "dice", dice, Dice, "lastword.Dice(seeds), or None")
    prompts = checked_prompts(prompts, model.ids)
    recipe = settle(recipe, model, prompts, in_chat=in_chat, beyond_positions=beyond_positions)
    length, unmask, commit, cache = recipe.length, recipe.unmask, recipe.commit, recipe.cache
    traits = traits_of(length)
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
    plan = checked_plan(length.plan(probe), length, len(prompts))
    canvas = _canvas(commit.prepare(plan.canvas(prompts, model.ids)), commit)
    canvas = hooks.after(None, canvas)
    forward = Forward(
        model, recipe.sampling, dice, hook=hooks.logits, beyond_positions=beyond_positions
    )
    clock, memory = Clock.start(canvas), cache.open(canvas)
    rule_state, length_state = unmask.begin(canvas), plan.state
    number = 0
    while canvas.masked.any():
        clock = clock.tick(canvas, recipe.block)
        window = canvas.masked & clock.window.columns(canvas.width)
        sees = unmask.sees(canvas, clock, rule_state)
        stale = cache.stale(canvas, clock) & sees
        read = (window | _reads(recipe, traits, canvas, clock)) & sees
        prediction = forward(canvas, read, sees=sees, stale=stale, memory=memory, step=number)
        columns, tokens = prediction.columns, prediction.written
        open = columns.at(window)
        chosen, rule_state = _pair(unmask.choose(prediction, open, clock, rule_state), unmask)
        chosen = checked_choice(unmask, chosen, open, clock)
        filled = canvas.write(columns.spread(chosen), tokens)
        ready = commit.ready(prediction, filled, clock) & prediction.speaks_for(canvas.masked)
        ready = _content(ready, plan, recipe, filled, prediction, clock, length_state)
        writes = columns.spread(chosen) | (ready[:, None] & canvas.masked)
        canvas = canvas.write(writes, tokens).give_up(window, writes)
        canvas, length_state = _pair(length.revise(canvas, prediction, clock, length_state), length)
        canvas = _canvas(canvas, length)
        canvas = canvas if plan.most is None else canvas.crop(plan.most)
        canvas = hooks.after(number, canvas)
        yield Step(clock, canvas, writes, prediction, plan, probe.cost, forward.cost, recipe)
        number += 1


def _reads(
    recipe: Recipe, length: LengthTraits, canvas: Canvas, clock: Clock
) -> Bool[Tensor, "B L"]:
    """What a pass must read beside the open masks: nothing, or as much of the answer as it can.

    A policy that resizes at any time is heard, under a cache that keeps by block, where a block
    opens: within one every resize would cost a full pass and give the cache nothing to keep.
    """
    cache = recipe.cache.traits
    if length.reads == "masks" and not recipe.commit.traits.reads_answer:
        return torch.zeros_like(canvas.answer)
    readable = canvas.valid if cache.fills_in else recipe.cache.stale(canvas, clock)
    if cache.by_block and length.resizes == "any time":
        readable = readable & clock.opening[:, None]
    return canvas.unfinished & readable


def _canvas(returned: object, part: object) -> Canvas:
    if not isinstance(returned, Canvas):
        raise WrongTypeError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `prepare` returns a canvas, and "
            "`revise` a canvas and a state"
        )
    return returned


def _pair(returned: Any, part: object) -> tuple[Any, State]:
    """What a part returned, if it is what it made and its state."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise SettingError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `choose` and `revise` return what "
            "they made and the state: (chosen, state), (canvas, state)"
        )
    return returned


def _content(
    ready: Bool[Tensor, "B"],
    plan: Plan,
    recipe: Recipe,
    canvas: Canvas,
    prediction: Prediction,
    clock: Clock,
    state: State,
) -> Bool[Tensor, "B"]:
    """Of the rows that could be committed now, those that the policy that planned does not lengthen.

    A row that asks for room is not done, and once every mask is filled nobody would hear it ask. What is
    wrapped around that policy acts between blocks, and can act on a row that was committed as well.
    """
    if not bool(ready.any()):
        return ready
    *_, planner = layers(recipe.length)
    revised, _ = planner.revise(canvas, prediction, clock, state)
    wanted = revised.horizon if plan.most is None else torch.minimum(revised.horizon, plan.most)
    return ready & (wanted <= canvas.horizon)
