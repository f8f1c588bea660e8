"""Slots: waiting prompts take free slots, rows that are done leave theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lastword.canvas.canvas import Canvas
from lastword.canvas.cost import Work
from lastword.canvas.state import each, on_device
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.hooks import Hooks
from lastword.passes.prediction import no_token
from lastword.recipe.recipe import Recipe
from lastword.slots.layout import Layout
from lastword.slots.queue import Queue
from lastword.slots.rows import Rows, Stage
from lastword.slots.ticket import Ticket, begun
from lastword.survival import LengthDistribution
from lastword.unmask.rule import no_choice

CPU = torch.device("cpu")
STAGES = [*Stage]  # by their numbers: looked up for every row at every step


@dataclass(frozen=True, eq=False)
class Done:
    """A row that has left its slot."""

    prompt: int  # its index, or whatever its queue calls it
    canvas: Canvas  # one row, on the CPU
    horizon: int  # slots planned
    lengths: LengthDistribution | None
    probe_cost: Work
    cost: Work


class Slots:
    """So many rows at work; a prompt that waits takes the slot of a row that is done."""

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        queue: Queue,
        layout: Layout,
        hooks: Hooks,
        *,
        count: int,
    ) -> None:
        self._model, self._recipe, self._queue = model, recipe, queue
        self._layout, self._hooks = layout, hooks
        self._taken: list[Ticket | None] = [None] * count
        self.tickets: list[Ticket] = []  # of each slot the last one
        self.now: Rows  # the rows at work
        self.stages: list[Stage] = []

    @property
    def prompts(self) -> tuple[int | None, ...]:
        """The number of the prompt in each slot; None: it is free."""
        return tuple(None if own is None else own.number for own in self._taken)

    @property
    def dice(self) -> Dice:
        """Those of the rows at work."""
        return Dice.joined([ticket.dice for ticket in self.tickets])

    def fill(self) -> bool:
        """Let waiting prompts take the free slots; is any row at work?"""
        dropped = self._queue.dropped()
        if dropped:
            self._free([slot for slot, number in enumerate(self.prompts) if number in dropped])
        taken = False
        while free := [slot for slot, own in enumerate(self._taken) if own is None]:
            tickets = self._queue.take(len(free))
            if not tickets:
                break
            self._begin(free[: len(tickets)], list(tickets))
            taken = True
        if taken:
            self.look()
        return any(self.stages)

    def _begin(self, slots: list[int], tickets: list[Ticket]) -> None:
        for slot, ticket in zip(slots, tickets):
            self._taken[slot] = ticket
        device, everyone = self._model.device, not self.tickets
        if everyone:  # slots that nobody takes stand by with a row that is done
            self.tickets = tickets + tickets[:1] * (len(self._taken) - len(tickets))
            slots = list(range(len(self._taken)))
        else:
            for slot, ticket in zip(slots, tickets):
                self.tickets[slot] = ticket
        new = begun(
            [self.tickets[slot] for slot in slots],
            self._recipe,
            self._layout,
            self._model.ids,
            self._hooks,
        )
        new, index = on_device(new, device), torch.tensor(slots, device=device)
        self.now = new if everyone else self.now.replaced(index, new)
        if everyone:
            self._free([slot for slot in slots if self._taken[slot] is None])

    def _free(self, slots: list[int]) -> None:
        """Empty slots, whatever their rows have come to."""
        if not slots:
            return
        index = torch.tensor(slots, device=self._model.device)
        self.now = self.now.ended(index)
        for slot in slots:
            self._taken[slot] = None
        self.look()

    def look(self) -> None:
        """Ask what the rows wait for: the one time in a step that the device has to be waited for."""
        self.stages = [STAGES[code] for code in self.now.stage.tolist()]
        for slot, stage in enumerate(self.stages):
            if stage is Stage.NO_TOKEN:
                raise no_token()
            if stage is Stage.NO_CHOICE:
                raise no_choice(self._recipe.unmask, slot, int(self.now.clock.step[slot]))

    def leave(self) -> tuple[Done, ...]:
        """Empty the slots of rows that are done."""
        done = {
            slot: own
            for slot, (stage, own) in enumerate(zip(self.stages, self._taken))
            if stage is Stage.DONE and own is not None
        }
        if not done:
            return ()
        index = torch.tensor(list(done), device=self._model.device)
        left = (self.now.canvas, self.now.cost)
        canvas, cost = on_device(each(lambda own: own.index_select(0, index), left), CPU)
        self._layout.check(canvas, self._recipe)
        for slot in done:
            self._taken[slot] = None
        return tuple(
            Done(
                own.number,
                canvas.row(row),
                own.plan.slots,
                own.plan.lengths,
                own.probe_cost,
                cost.row(row),
            )
            for row, own in enumerate(done.values())
        )
