"""One decoding step: forward pass, choice of tokens, write, length revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.columns import Columns, cached_arange
from lastword.canvas.cost import BatchCost
from lastword.canvas.tree import State, tree_where
from lastword.decoding.batch_state import BatchState, Phase, check_canvas, phase_of
from lastword.decoding.forward import Forward, Room
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import limit_exceeded_error
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.models.storage import CacheStorage, KVStorage
from lastword.policies.length.wrapper import combined_traits, policy_layers
from lastword.policies.unmask.rule import check_choice_of_rule, max_idle_steps, stuck_rows
from lastword.recipe.recipe import Recipe


class StepDetails(NamedTuple):
    """What a step leaves to look at beside the rows after it."""

    chosen: Bool[Tensor, "B L"]  # masks of prediction.canvas the rules chose to fill
    prediction: Prediction


class Stepper:
    """The parts of one recipe at work: pass, candidates, choice, write, revision, clock.

    A step reads no state but the rows it is given and the memory its cache opened for them.
    """

    def __init__(
        self, recipe: Recipe, forward: Forward, hooks: Hooks, memory: CacheStorage | None = None
    ) -> None:
        self.recipe, self._forward, self._hooks = recipe, forward, hooks
        self.memory = memory
        self._number = 0
        self._idles: Tensor | None = None  # how long the rule may fill nothing, for `within`

    def __call__(
        self, rows: BatchState, turn: Bool[Tensor, "B"] | None = None
    ) -> tuple[BatchState, StepDetails]:
        """One step of all rows, or of those whose turn it is."""
        recipe, canvas, clock = self.recipe, rows.canvas, rows.clock
        if self.memory is None:
            self.memory = recipe.cache.open(canvas)
        window = canvas.masked & clock.window.columns(canvas.width)
        sees = recipe.unmask.sees(canvas, clock, rows.rule_state)
        stale = recipe.cache.stale(canvas, clock) & sees
        read = window if (also := self._reads(canvas, clock)) is None else window | also
        read = read & sees
        if turn is not None:
            window, read = window & turn[:, None], read & turn[:, None]
        prediction, cost = self._forward(
            canvas,
            read,
            rows.cost,
            sees=sees,
            stale=stale,
            memory=self.memory,
            step=self._number,
        )
        after, seen = self._after(rows, window, prediction, cost, turn)
        self._number += 1
        return after, seen

    def within(
        self, rows: BatchState, opening: slice | None = None, own: slice | None = None
    ) -> tuple[BatchState, StepDetails]:
        """One step of the rows within their block, in fixed shapes: nothing is asked of the device.

        With `opening`, one of the rows that open a block and recompute these columns, at least to the end
        of their last block: the answer, or all of a lone row, whose columns are `own`. What would be an
        error is noted in the rows instead, to be raised by whoever looks at them.
        """
        assert isinstance(self.memory, KVStorage)
        assert self.recipe.block is not None
        canvas, clock = rows.canvas.with_static(True), rows.clock
        turn = rows.phase == (Phase.IN_BLOCK if opening is None else Phase.BLOCK_START)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        columns = Columns.from_window(clock.window.first, self.recipe.block, window)
        carried, computed = columns.index, clock.window.last - clock.window.first
        if opening is not None:
            carried = opening.start + cached_arange(opening.stop - opening.start, canvas.device)
            carried, computed = carried.expand(len(turn), -1), canvas.horizon
            if own is not None:
                computed = computed + canvas.prompt_length
        prediction, cost = self._forward.within(
            canvas,
            columns,
            rows.cost,
            carried=carried,
            computed=computed,
            memory=self.memory,
            own=own,
        )
        after, seen = self._after(replace(rows, canvas=canvas), window, prediction, cost, turn)
        return replace(after, canvas=after.canvas.with_static(False)), seen

    def alone(self, rows: BatchState, own: slice) -> tuple[BatchState, StepDetails]:
        """The same for a pass over all columns of a lone row, which are `own`."""
        canvas, clock = rows.canvas.with_static(True), rows.clock
        turn = (rows.phase == Phase.IN_BLOCK) | (rows.phase == Phase.BLOCK_START)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        slots = own.stop - canvas.start
        block = min(self.recipe.block or slots, slots)
        # The last block may be short: what is read begins before it then.
        first = clock.window.first.clamp(max=own.stop - block)
        columns = Columns.from_window(first, block, window)
        prediction, cost = self._forward.alone(canvas, columns, rows.cost, own)
        after, seen = self._after(replace(rows, canvas=canvas), window, prediction, cost, turn)
        return replace(after, canvas=after.canvas.with_static(False)), seen

    def together(self, rows: BatchState, room: Room) -> tuple[BatchState, StepDetails]:
        """The same for all columns of all rows, for which there is `room`."""
        canvas, clock = rows.canvas.with_static(True), rows.clock
        turn = (rows.phase == Phase.IN_BLOCK) | (rows.phase == Phase.BLOCK_START)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        columns = Columns.from_window(clock.window.first, self.recipe.block or room.slots, window)
        prediction, cost = self._forward.together(canvas, columns, rows.cost, turn, room)
        after, seen = self._after(replace(rows, canvas=canvas), window, prediction, cost, turn)
        return replace(after, canvas=after.canvas.with_static(False)), seen

    def _after(
        self,
        rows: BatchState,
        window: Bool[Tensor, "B L"],
        prediction: Prediction,
        cost: BatchCost,
        turn: Bool[Tensor, "B"] | None,
    ) -> tuple[BatchState, StepDetails]:
        """What follows from a pass, for the rows whose turn it was."""
        recipe, canvas, clock = self.recipe, rows.canvas, rows.clock
        columns, tokens = prediction.columns, prediction.tokens_on_canvas
        open = columns.gather(window)
        chosen, rule = _pair(recipe.unmask.choose(prediction, open, clock, rows.rule_state), recipe.unmask)
        chosen, fault = self._checked(chosen, open, clock, prediction)
        writes = columns.scatter(chosen)
        if recipe.commit.traits.reads_answer:
            filled = canvas.write(writes, tokens)
            ready = recipe.commit.ready(prediction, filled, clock)
            ready = ready & prediction.covers_all(canvas.masked)
            ready = self._content(ready, rows, filled, prediction)
            writes = writes | (ready[:, None] & canvas.masked)
        canvas = canvas.write(writes, tokens)
        if recipe.sampling.propose_mask:
            canvas = canvas.abandon(window, writes)
        canvas, length = _pair(
            recipe.length.revise(canvas, prediction, clock, rows.length_state), recipe.length
        )
        canvas = check_canvas(canvas, recipe.length)
        canvas = canvas if rows.max_new_tokens is None else canvas.crop(rows.max_new_tokens)
        canvas = self._hooks.after(self._number, canvas)
        if turn is not None:
            if canvas.width != rows.canvas.width:
                raise limit_exceeded_error(recipe)
            canvas = canvas.where(turn, rows.canvas)
            rule, length = (
                tree_where(turn, rule, rows.rule_state),
                tree_where(turn, length, rows.length_state),
            )
        clock = clock.tick(canvas, recipe.block, turn)
        stage = phase_of(canvas, clock, fault)
        return BatchState(canvas, clock, rule, length, rows.max_new_tokens, cost, stage), StepDetails(
            writes, prediction
        )

    def _checked(
        self, chosen: Any, open: Bool[Tensor, "B S"], clock: Clock, prediction: Prediction
    ) -> tuple[Bool[Tensor, "B S"], Tensor | None]:
        """What the rule chose, held to its promise; and errors of rows, where raising has to wait."""
        unmask = self.recipe.unmask
        if not prediction.canvas.static:
            return check_choice_of_rule(unmask, chosen, open, clock), None
        if self._idles is None:
            self._idles = torch.tensor(max_idle_steps(unmask, open.shape[1]), device=open.device)
        chosen = chosen & open
        fault = stuck_rows(chosen, open, clock, self._idles) * int(Phase.NO_CHOICE)
        if prediction.invalid_rows is not None:
            fault = torch.where(prediction.invalid_rows, int(Phase.INVALID_LOGITS), fault)
        return chosen, fault

    def _reads(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"] | None:
        """What a pass must read beside the open masks: nothing, or as much of the answer as it can.

        A policy that resizes at any time is heard, under a cache that keeps by block, where a block
        opens: within one every resize would cost a full pass and give the cache nothing to keep.
        """
        recipe = self.recipe
        cache, length = recipe.cache.traits, combined_traits(recipe.length)
        if length.reads == "masks" and not recipe.commit.traits.reads_answer:
            return None
        readable = canvas.valid if cache.fills_in else recipe.cache.stale(canvas, clock)
        if cache.by_block and length.resizes == "any time":
            readable = readable & clock.block_start[:, None]
        return canvas.unfinished & readable

    def _content(
        self, ready: Bool[Tensor, "B"], rows: BatchState, canvas: Canvas, prediction: Prediction
    ) -> Bool[Tensor, "B"]:
        """Of the rows that could be committed now, those that the policy that planned does not lengthen.

        A row that asks for room is not done, and once every mask is filled nobody would hear it ask. What
        is wrapped around that policy acts between blocks, and can act on a row that was committed as well.
        """
        if not canvas.may_contain(ready):
            return ready
        *_, planner = policy_layers(self.recipe.length)
        revised, _ = planner.revise(canvas, prediction, rows.clock, rows.length_state)
        wanted = (
            revised.horizon
            if rows.max_new_tokens is None
            else torch.minimum(revised.horizon, rows.max_new_tokens)
        )
        return ready & (wanted <= canvas.horizon)


def _pair(returned: Any, part: object) -> tuple[Any, State]:
    """What a part returned, if it is what it made and its state."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise SettingError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `choose` and `revise` return what "
            "they made and the state: (chosen, state), (canvas, state)"
        )
    return returned
