"""THE loop: from token ids to a finished canvas, one Step per forward pass.

It knows nothing of text. Everything that varies is a part of the recipe; streaming, traces, plots
and ablations consume Steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, checked_prompts
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost
from lastword.canvas.ids import PromptIds
from lastword.checks import check_choice, check_type, check_whole
from lastword.errors import SettingError
from lastword.length.policy import Plan
from lastword.models.predictor import MaskPredictor, check_model
from lastword.passes.dice import Dice
from lastword.passes.forward import Forward
from lastword.passes.hooks import Hooks
from lastword.passes.prediction import Prediction
from lastword.recipe.recipe import Recipe
from lastword.recipe.settling import settle
from lastword.slots.layout import Layout, fixes_shapes
from lastword.slots.slots import Done, Slots
from lastword.slots.stepper import Seen, Stepper
from lastword.slots.turns import Turns

__all__ = ["Step", "decode"]


@dataclass(frozen=True, eq=False)
class Step:
    """The state after one step of decoding: a forward pass, a choice, a write, a revision.

    Rows are slots: those of the prompts, unless there are fewer slots than prompts, and then `prompts`
    says whose each slot is. `prediction` holds the pass's logits: keep the steps you need, not a list of
    all of them.
    """

    clock: Clock
    canvas: Canvas
    plan: Plan
    probe_cost: Cost
    cost: Cost
    recipe: Recipe  # as it was settled
    prompts: tuple[int | None, ...]  # the index of the prompt in each slot; None: the slot is free
    done: tuple[Done, ...]  # rows that this step finished
    seen: Seen | None  # None: the pass was replayed as a captured graph

    @property
    def chosen(self) -> Bool[Tensor, "B L"]:
        """Masks of prediction.canvas the rules chose to fill in this step."""
        return self._seen.chosen

    @property
    def prediction(self) -> Prediction:
        """What the pass said."""
        return self._seen.prediction

    @property
    def _seen(self) -> Seen:
        if self.seen is None:
            raise SettingError(
                "this pass was replayed as a captured graph, which leaves nothing to look at but the rows "
                "after it; decode with replay=False"
            )
        return self.seen


def decode(
    model: MaskPredictor,
    prompts: Sequence[PromptIds],
    recipe: Recipe = Recipe(),
    *,
    dice: Dice | None = None,
    hooks: Hooks = Hooks(),
    beyond_positions: bool = False,
    in_chat: Collection[bool | None] = (),
    slots: int | None = None,
    replay: bool = False,
) -> Iterator[Step]:
    """Decode prompts, given as token ids. Each row decodes as if it were alone.

    All of them at once, or `slots` at a time: a row that is done leaves its slot to the next. `in_chat`
    says whether the prompts went through the chat template, for a calibration to agree with. With `replay`
    passes within a block are replayed as a captured graph where the model's device has such (CUDA), the
    recipe keeps its shapes and none of its parts asks the host anything.
    """
    check_model(model)
    recipe = Recipe.checked(recipe)
    Hooks.check("decode", hooks)
    check_choice("decode", "beyond_positions", beyond_positions, True, False)
    if dice is not None:
        check_type("decode", "dice", dice, Dice, "lastword.Dice(seeds), or None")
    check_choice("decode", "replay", replay, True, False)
    if slots is not None:
        check_whole("decode", "slots", slots, least=1)
        if hooks != Hooks():
            raise SettingError(
                f"decode(slots={slots}) was given with hooks, which see all rows at once; leave either out"
            )
    prompts = checked_prompts(prompts, model.ids)
    recipe = settle(recipe, model, prompts, in_chat=in_chat, beyond_positions=beyond_positions)
    dice = dice or Dice(range(len(prompts)), model.device)
    if len(dice) != len(prompts):
        raise SettingError(f"{len(dice)} dice were given for {len(prompts)} prompts; give one each")
    forward = Forward(
        model, recipe.sampling, dice, hook=hooks.logits, beyond_positions=beyond_positions
    )
    count = min(slots or len(prompts), len(prompts))
    fixed = fixes_shapes(model.device, recipe, hooks, count)
    layout = Layout.of(recipe, prompts) if fixed else Layout(max(map(len, prompts)))
    rows = Slots(
        model,
        recipe,
        prompts,
        hooks,
        layout,
        count=count,
        beyond_positions=beyond_positions,
    )
    stepper = Stepper(recipe, forward, hooks)
    turns = Turns(stepper, model, replay=replay) if fixed else None
    try:
        while rows.fill():
            forward.dice = dice.of(rows.prompts)
            before = rows.now
            rows.now, seen = stepper(before) if turns is None else turns(before, rows.stages)
            rows.look()
            yield Step(
                before.clock,
                rows.now.canvas,
                rows.plan,
                rows.probe_cost,
                rows.now.cost,
                recipe,
                rows.prompts,
                rows.leave(),
                seen,
            )
    finally:
        if turns is not None:
            turns.close()
