"""Continuous batching: admission of planned requests and eviction of finished rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.cost import Work
from lastword.canvas.tree import each, on_device
from lastword.decoding.batch_state import Rows, Stage
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import Layout
from lastword.decoding.planning import Ticket, begun, planned
from lastword.decoding.prediction import no_token
from lastword.decoding.sampling import Dice
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.policies.unmask.rule import no_choice
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import LengthDistribution


class Queue(ABC):
    """Prompts that wait. It is asked between two steps, and decoding ends when nobody is at work."""

    @abstractmethod
    def take(self, free: int) -> Sequence[Ticket]:
        """Those that take slots now, at most `free` of them; none: nobody waits, or should."""

    def dropped(self) -> Collection[int]:
        """Numbers of rows at work that nobody wants any more: they leave their slots as they stand."""
        return ()


class InOrder(Queue):
    """A list of prompts. As many as there are slots are planned at once, but for those that bring a plan.

    Of those the one with the longest row goes first: what is left at the end is short.
    """

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        prompts: Sequence[Tensor],
        dice: Dice,
        *,
        count: int,
        most: Sequence[int] | None = None,
        plans: Sequence[tuple[Plan, Work] | None] | None = None,
        beyond_positions: bool = False,
    ) -> None:
        self._model, self._recipe, self._prompts, self._dice = model, recipe, prompts, dice
        self._count, self._most, self._beyond_positions = count, most, beyond_positions
        self._plans = plans or [None] * len(prompts)
        self._waiting = list(range(len(prompts)))
        self._next: list[Ticket] = []

    def take(self, free: int) -> Sequence[Ticket]:
        if not self._next and self._waiting:
            self._next = self._planned()
        taken, self._next = self._next[:free], self._next[free:]
        return taken

    def _planned(self) -> list[Ticket]:
        chosen, self._waiting = self._waiting[: self._count], self._waiting[self._count :]
        made = {index: self._plans[index] for index in chosen}
        lacking = [index for index in chosen if made[index] is None]
        if lacking:
            found = planned(
                self._model,
                self._recipe,
                [self._prompts[index] for index in lacking],
                most=None if self._most is None else [self._most[index] for index in lacking],
                beyond_positions=self._beyond_positions,
            )
            made |= dict(zip(lacking, found))
        plans = [own for own in made.values() if own is not None]
        tickets = [
            Ticket(index, self._prompts[index], plan, cost, self._dice.of([index]))
            for index, (plan, cost) in zip(chosen, plans)
        ]
        if self._count < len(self._prompts):
            tickets.sort(key=lambda own: len(own.prompt) + own.plan.slots, reverse=True)
        return tickets


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
