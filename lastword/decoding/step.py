"""One decoding step: forward pass, choice of tokens, write, length revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.columns import Columns, counted
from lastword.canvas.cost import Cost
from lastword.canvas.tree import State, merged
from lastword.decoding.batch_state import Rows, Stage, checked_canvas, staged
from lastword.decoding.forward import Forward, Room
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import too_long
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.models.storage import KeyValues, Memory
from lastword.policies.length.wrapper import layers, traits_of
from lastword.policies.unmask.rule import checked_choice, idles, stuck_rows
from lastword.recipe.recipe import Recipe


class Seen(NamedTuple):
    """What a step leaves to look at beside the rows after it."""

    chosen: Bool[Tensor, "B L"]  # masks of prediction.canvas the rules chose to fill
    prediction: Prediction


class Stepper:
    """The parts of one recipe at work: pass, candidates, choice, write, revision, clock.

    A step reads no state but the rows it is given and the memory its cache opened for them.
    """

    def __init__(
        self, recipe: Recipe, forward: Forward, hooks: Hooks, memory: Memory | None = None
    ) -> None:
        self.recipe, self._forward, self._hooks = recipe, forward, hooks
        self.memory = memory
        self._number = 0
        self._idles: Tensor | None = None  # how long the rule may fill nothing, for `within`

    def __call__(self, rows: Rows, turn: Bool[Tensor, "B"] | None = None) -> tuple[Rows, Seen]:
        """One step of all rows, or of those whose turn it is."""
        recipe, canvas, clock = self.recipe, rows.canvas, rows.clock
        if self.memory is None:
            self.memory = recipe.cache.open(canvas)
        window = canvas.masked & clock.window.columns(canvas.width)
        sees = recipe.unmask.sees(canvas, clock, rows.rule)
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
        self, rows: Rows, opening: slice | None = None, own: slice | None = None
    ) -> tuple[Rows, Seen]:
        """One step of the rows within their block, in fixed shapes: nothing is asked of the device.

        With `opening`, one of the rows that open a block and recompute these columns, at least to the end
        of their last block: the answer, or all of a lone row, whose columns are `own`. What would be an
        error is noted in the rows instead, to be raised by whoever looks at them.
        """
        assert isinstance(self.memory, KeyValues)
        assert self.recipe.block is not None
        canvas, clock = rows.canvas.fixed(True), rows.clock
        turn = rows.stage == (Stage.WITHIN if opening is None else Stage.OPENING)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        columns = Columns.within(clock.window.first, self.recipe.block, window)
        carried, computed = columns.index, clock.window.last - clock.window.first
        if opening is not None:
            carried = opening.start + counted(opening.stop - opening.start, canvas.device)
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
        return replace(after, canvas=after.canvas.fixed(False)), seen

    def alone(self, rows: Rows, own: slice) -> tuple[Rows, Seen]:
        """The same for a pass over all columns of a lone row, which are `own`."""
        canvas, clock = rows.canvas.fixed(True), rows.clock
        turn = (rows.stage == Stage.WITHIN) | (rows.stage == Stage.OPENING)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        slots = own.stop - canvas.start
        block = min(self.recipe.block or slots, slots)
        # The last block may be short: what is read begins before it then.
        first = clock.window.first.clamp(max=own.stop - block)
        columns = Columns.within(first, block, window)
        prediction, cost = self._forward.alone(canvas, columns, rows.cost, own)
        after, seen = self._after(replace(rows, canvas=canvas), window, prediction, cost, turn)
        return replace(after, canvas=after.canvas.fixed(False)), seen

    def together(self, rows: Rows, room: Room) -> tuple[Rows, Seen]:
        """The same for all columns of all rows, for which there is `room`."""
        canvas, clock = rows.canvas.fixed(True), rows.clock
        turn = (rows.stage == Stage.WITHIN) | (rows.stage == Stage.OPENING)
        window = canvas.masked & clock.window.columns(canvas.width) & turn[:, None]
        columns = Columns.within(clock.window.first, self.recipe.block or room.slots, window)
        prediction, cost = self._forward.together(canvas, columns, rows.cost, turn, room)
        after, seen = self._after(replace(rows, canvas=canvas), window, prediction, cost, turn)
        return replace(after, canvas=after.canvas.fixed(False)), seen

    def _after(
        self,
        rows: Rows,
        window: Bool[Tensor, "B L"],
        prediction: Prediction,
        cost: Cost,
        turn: Bool[Tensor, "B"] | None,
    ) -> tuple[Rows, Seen]:
        """What follows from a pass, for the rows whose turn it was."""
        recipe, canvas, clock = self.recipe, rows.canvas, rows.clock
        columns, tokens = prediction.columns, prediction.written
        open = columns.at(window)
        chosen, rule = _pair(
            recipe.unmask.choose(prediction, open, clock, rows.rule), recipe.unmask
        )
        chosen, fault = self._checked(chosen, open, clock, prediction)
        writes = columns.spread(chosen)
        if recipe.commit.traits.reads_answer:
            filled = canvas.write(writes, tokens)
            ready = recipe.commit.ready(prediction, filled, clock)
            ready = ready & prediction.speaks_for(canvas.masked)
            ready = self._content(ready, rows, filled, prediction)
            writes = writes | (ready[:, None] & canvas.masked)
        canvas = canvas.write(writes, tokens)
        if recipe.sampling.propose_mask:
            canvas = canvas.give_up(window, writes)
        canvas, length = _pair(
            recipe.length.revise(canvas, prediction, clock, rows.length), recipe.length
        )
        canvas = checked_canvas(canvas, recipe.length)
        canvas = canvas if rows.most is None else canvas.crop(rows.most)
        canvas = self._hooks.after(self._number, canvas)
        if turn is not None:
            if canvas.width != rows.canvas.width:
                raise too_long(recipe)
            canvas = canvas.where(turn, rows.canvas)
            rule, length = merged(turn, rule, rows.rule), merged(turn, length, rows.length)
        clock = clock.tick(canvas, recipe.block, turn)
        stage = staged(canvas, clock, fault)
        return Rows(canvas, clock, rule, length, rows.most, cost, stage), Seen(writes, prediction)

    def _checked(
        self, chosen: Any, open: Bool[Tensor, "B S"], clock: Clock, prediction: Prediction
    ) -> tuple[Bool[Tensor, "B S"], Tensor | None]:
        """What the rule chose, held to its promise; and errors of rows, where raising has to wait."""
        unmask = self.recipe.unmask
        if not prediction.canvas.static:
            return checked_choice(unmask, chosen, open, clock), None
        if self._idles is None:
            self._idles = torch.tensor(idles(unmask, open.shape[1]), device=open.device)
        chosen = chosen & open
        fault = stuck_rows(chosen, open, clock, self._idles) * int(Stage.NO_CHOICE)
        if prediction.broken is not None:
            fault = torch.where(prediction.broken, int(Stage.NO_TOKEN), fault)
        return chosen, fault

    def _reads(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"] | None:
        """What a pass must read beside the open masks: nothing, or as much of the answer as it can.

        A policy that resizes at any time is heard, under a cache that keeps by block, where a block
        opens: within one every resize would cost a full pass and give the cache nothing to keep.
        """
        recipe = self.recipe
        cache, length = recipe.cache.traits, traits_of(recipe.length)
        if length.reads == "masks" and not recipe.commit.traits.reads_answer:
            return None
        readable = canvas.valid if cache.fills_in else recipe.cache.stale(canvas, clock)
        if cache.by_block and length.resizes == "any time":
            readable = readable & clock.opening[:, None]
        return canvas.unfinished & readable

    def _content(
        self, ready: Bool[Tensor, "B"], rows: Rows, canvas: Canvas, prediction: Prediction
    ) -> Bool[Tensor, "B"]:
        """Of the rows that could be committed now, those that the policy that planned does not lengthen.

        A row that asks for room is not done, and once every mask is filled nobody would hear it ask. What
        is wrapped around that policy acts between blocks, and can act on a row that was committed as well.
        """
        if not canvas.holds(ready):
            return ready
        *_, planner = layers(self.recipe.length)
        revised, _ = planner.revise(canvas, prediction, rows.clock, rows.length)
        wanted = revised.horizon if rows.most is None else torch.minimum(revised.horizon, rows.most)
        return ready & (wanted <= canvas.horizon)


def _pair(returned: Any, part: object) -> tuple[Any, State]:
    """What a part returned, if it is what it made and its state."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise SettingError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `choose` and `revise` return what "
            "they made and the state: (chosen, state), (canvas, state)"
        )
    return returned
