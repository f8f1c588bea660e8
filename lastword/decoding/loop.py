"""The decoding loop: from token ids to finished canvases, one `Step` per forward pass."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, checked_prompts
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost, Work
from lastword.canvas.tokens import PromptIds
from lastword.decoding.forward import Forward
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import Layout, fixes_shapes
from lastword.decoding.planning import Ticket
from lastword.decoding.prediction import Prediction
from lastword.decoding.running_batch import Done, InOrder, Queue, Slots
from lastword.decoding.sampling import Dice
from lastword.decoding.static_shapes import Turns
from lastword.decoding.step import Seen, Stepper
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import MaskPredictor, check_model
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import settle
from lastword.validation import (
    check_choice,
    check_sequence,
    check_type,
    check_whole,
    shown,
)

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
    tickets: tuple[Ticket, ...]  # what each row began with; of a free slot, the row that left it
    cost: Cost
    recipe: Recipe  # as it was settled
    prompts: tuple[int | None, ...]  # the index of the prompt in each slot; None: the slot is free
    done: tuple[Done, ...]  # rows that this step finished
    seen: Seen | None  # None: the pass was replayed as a captured graph

    @property
    def plan(self) -> Plan:
        """What was planned for the rows."""
        return Plan.joined([ticket.plan for ticket in self.tickets])

    @property
    def probe_cost(self) -> Cost:
        """What that cost."""
        return Cost.of([ticket.probe_cost for ticket in self.tickets])

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
    most: Sequence[int] | None = None,
    plans: Sequence[tuple[Plan, Work] | None] | None = None,
    replay: bool = False,
) -> Iterator[Step]:
    """Decode prompts, given as token ids. Each row decodes as if it were alone.

    All of them at once, or `slots` at a time: a row that is done leaves its slot to the next. `most` says
    of each prompt how many slots its answer may have at most, whatever was planned. `plans`
    are those that were made before, with what they cost: that prompt is not probed again. `in_chat`
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
    if most is not None:
        check_sequence("decode", "most", most, "a list of whole numbers, one a prompt")
        for own in most:
            check_whole("decode", "most", own, least=1)
        if len(most) != len(prompts):
            raise SettingError(
                f"{len(most)} bounds were given for {len(prompts)} prompts; give one each"
            )
    if plans is not None:
        _check_plans(plans, len(prompts))
    recipe = settle(recipe, model, prompts, in_chat=in_chat, beyond_positions=beyond_positions)
    dice = dice or Dice(range(len(prompts)), model.device)
    if len(dice) != len(prompts):
        raise SettingError(f"{len(dice)} dice were given for {len(prompts)} prompts; give one each")
    count = min(slots or len(prompts), len(prompts))
    queue = InOrder(
        model,
        recipe,
        prompts,
        dice,
        count=count,
        most=most,
        plans=plans,
        beyond_positions=beyond_positions,
    )
    yield from steps(
        model,
        recipe,
        queue,
        slots=count,
        longest=max(map(len, prompts)),
        hooks=hooks,
        beyond_positions=beyond_positions,
        replay=replay,
    )


def _check_plans(plans: Sequence[object], prompts: int) -> None:
    """One for each prompt, or None where there is none."""
    check_sequence("decode", "plans", plans, "a list of plans and their costs, one a prompt")
    for own in plans:
        made = isinstance(own, tuple) and [*map(type, own)] == [Plan, Work]
        if own is not None and not made:
            raise WrongTypeError(
                f"decode(plans=...) was given {shown(own)}; a plan comes with its cost, as "
                "lastword.decoding.planning.planned returns them, or None"
            )
    if len(plans) != prompts:
        raise SettingError(f"{len(plans)} plans were given for {prompts} prompts; give one each")


def steps(
    model: MaskPredictor,
    recipe: Recipe,  # as it was settled
    queue: Queue,
    *,
    slots: int,
    longest: int,
    hooks: Hooks = Hooks(),
    beyond_positions: bool = False,
    replay: bool = False,
    columns: int | None = None,
) -> Generator[Step, None, None]:
    """Decode whoever waits in the queue, prompts of up to `longest` tokens, until nobody is at work.

    With `columns`, a cache whose passes have fixed shapes keeps rows in a pool of so many, each in as many as
    its ticket reserves.
    """
    forward = Forward(
        model, recipe.sampling, Dice([]), hook=hooks.logits, beyond_positions=beyond_positions
    )
    packs = getattr(model, "is_packed", False) is True
    # Nobody has captured a pass of several ranks yet.
    alone = getattr(model, "ranks", None) is None
    fixed = alone and fixes_shapes(model.device, recipe, hooks, slots, packs=packs)
    layout = Layout.of(recipe, longest) if fixed else Layout(longest)
    rows = Slots(model, recipe, queue, layout, hooks, count=slots)
    stepper = Stepper(recipe, forward, hooks)
    turns = Turns(stepper, model, replay=replay, columns=columns) if fixed else None
    step = turns or (lambda now, *_: stepper(now))
    try:
        while rows.fill():
            forward.dice, tickets = rows.dice, tuple(rows.tickets)
            before = rows.now
            rows.now, seen = step(before, rows.stages, tickets)
            rows.look()
            prompts = rows.prompts
            yield Step(
                before.clock,
                rows.now.canvas,
                tickets,
                rows.now.cost,
                recipe,
                prompts,
                rows.leave(),
                seen,
            )
    finally:
        if turns is not None:
            turns.close()
