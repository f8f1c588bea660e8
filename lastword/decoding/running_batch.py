"""Continuous batching: admission of planned requests and eviction of finished rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.cost import TokenCost
from lastword.canvas.tree import tree_map, tree_to
from lastword.decoding.batch_state import BatchState, Phase
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import CanvasLayout
from lastword.decoding.planning import PlannedRequest, initial_state, plan_lengths
from lastword.decoding.prediction import invalid_logits_error
from lastword.decoding.sampling import RowGenerators
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.policies.unmask.rule import stuck_error
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import LengthDistribution


class RequestQueue(ABC):
    """Prompts that wait. It is asked between two steps, and decoding ends when nobody is at work."""

    @abstractmethod
    def take(self, free: int) -> Sequence[PlannedRequest]:
        """Those that take slots now, at most `free` of them; none: nobody waits, or should."""

    def cancelled(self) -> Collection[int]:
        """Numbers of rows at work that nobody wants any more: they leave their slots as they stand."""
        return ()


class PromptQueue(RequestQueue):
    """A list of prompts. As many as there are slots are planned at once, but for those that bring a plan.

    Of those the one with the longest row goes first: what is left at the end is short.
    """

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        prompts: Sequence[Tensor],
        generators: RowGenerators,
        *,
        count: int,
        max_new_tokens: Sequence[int] | None = None,
        plans: Sequence[tuple[Plan, TokenCost] | None] | None = None,
        exceed_max_seq_len: bool = False,
    ) -> None:
        self._model, self._recipe, self._prompts, self._dice = model, recipe, prompts, generators
        self._count, self._most, self._exceed_max_seq_len = (
            count,
            max_new_tokens,
            exceed_max_seq_len,
        )
        self._plans = plans or [None] * len(prompts)
        self._waiting = list(range(len(prompts)))
        self._next: list[PlannedRequest] = []

    def take(self, free: int) -> Sequence[PlannedRequest]:
        if not self._next and self._waiting:
            self._next = self._planned()
        taken, self._next = self._next[:free], self._next[free:]
        return taken

    def _planned(self) -> list[PlannedRequest]:
        chosen, self._waiting = self._waiting[: self._count], self._waiting[self._count :]
        made = {index: self._plans[index] for index in chosen}
        lacking = [index for index in chosen if made[index] is None]
        if lacking:
            found = plan_lengths(
                self._model,
                self._recipe,
                [self._prompts[index] for index in lacking],
                max_new_tokens=None if self._most is None else [self._most[index] for index in lacking],
                exceed_max_seq_len=self._exceed_max_seq_len,
            )
            made |= dict(zip(lacking, found))
        plans = [own for own in made.values() if own is not None]
        tickets = [
            PlannedRequest(index, self._prompts[index], plan, cost, self._dice.select([index]))
            for index, (plan, cost) in zip(chosen, plans)
        ]
        if self._count < len(self._prompts):
            tickets.sort(key=lambda own: len(own.prompt_ids) + own.plan.max_horizon, reverse=True)
        return tickets


CPU = torch.device("cpu")
PHASES = [*Phase]  # by their numbers: looked up for every row at every step


@dataclass(frozen=True, eq=False)
class FinishedRow:
    """A row that has left its slot."""

    request_id: int  # its index, or whatever its queue calls it
    canvas: Canvas  # one row, on the CPU
    horizon: int  # slots planned
    lengths: LengthDistribution | None
    probe_cost: TokenCost
    cost: TokenCost


class RunningBatch:
    """So many rows at work; a prompt that waits takes the slot of a row that is done."""

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        queue: RequestQueue,
        layout: CanvasLayout,
        hooks: Hooks,
        *,
        count: int,
    ) -> None:
        self._model, self._recipe, self._queue = model, recipe, queue
        self._layout, self._hooks = layout, hooks
        self._taken: list[PlannedRequest | None] = [None] * count
        self.requests: list[PlannedRequest] = []  # of each slot the last one
        self.state: BatchState  # the rows at work
        self.phases: list[Phase] = []

    @property
    def request_ids(self) -> tuple[int | None, ...]:
        """The number of the prompt in each slot; None: it is free."""
        return tuple(None if own is None else own.request_id for own in self._taken)

    @property
    def generators(self) -> RowGenerators:
        """Those of the rows at work."""
        return RowGenerators.concat([ticket.generators for ticket in self.requests])

    def admit(self) -> bool:
        """Let waiting prompts take the free slots; is any row at work?"""
        dropped = self._queue.cancelled()
        if dropped:
            self._free([slot for slot, number in enumerate(self.request_ids) if number in dropped])
        taken = False
        while free := [slot for slot, own in enumerate(self._taken) if own is None]:
            tickets = self._queue.take(len(free))
            if not tickets:
                break
            self._begin(free[: len(tickets)], list(tickets))
            taken = True
        if taken:
            self.sync_phases()
        return any(self.phases)

    def _begin(self, slots: list[int], tickets: list[PlannedRequest]) -> None:
        for slot, ticket in zip(slots, tickets):
            self._taken[slot] = ticket
        device, everyone = self._model.device, not self.requests
        if everyone:  # slots that nobody takes stand by with a row that is done
            self.requests = tickets + tickets[:1] * (len(self._taken) - len(tickets))
            slots = list(range(len(self._taken)))
        else:
            for slot, ticket in zip(slots, tickets):
                self.requests[slot] = ticket
        new = initial_state(
            [self.requests[slot] for slot in slots],
            self._recipe,
            self._layout,
            self._model.ids,
            self._hooks,
        )
        new, index = tree_to(new, device), torch.tensor(slots, device=device)
        self.state = new if everyone else self.state.with_rows(index, new)
        if everyone:
            self._free([slot for slot in slots if self._taken[slot] is None])

    def _free(self, slots: list[int]) -> None:
        """Empty slots, whatever their rows have come to."""
        if not slots:
            return
        index = torch.tensor(slots, device=self._model.device)
        self.state = self.state.with_rows_ended(index)
        for slot in slots:
            self._taken[slot] = None
        self.sync_phases()

    def sync_phases(self) -> None:
        """Ask what the rows wait for: the one time in a step that the device has to be waited for."""
        self.phases = [PHASES[code] for code in self.state.phase.tolist()]
        for slot, stage in enumerate(self.phases):
            if stage is Phase.INVALID_LOGITS:
                raise invalid_logits_error()
            if stage is Phase.NO_CHOICE:
                raise stuck_error(self._recipe.unmask, slot, int(self.state.clock.step[slot]))

    def evict_finished(self) -> tuple[FinishedRow, ...]:
        """Empty the slots of rows that are done."""
        done = {
            slot: own
            for slot, (stage, own) in enumerate(zip(self.phases, self._taken))
            if stage is Phase.DONE and own is not None
        }
        if not done:
            return ()
        index = torch.tensor(list(done), device=self._model.device)
        left = (self.state.canvas, self.state.cost)
        canvas, cost = tree_to(tree_map(lambda own: own.index_select(0, index), left), CPU)
        self._layout.check(canvas, self._recipe)
        for slot in done:
            self._taken[slot] = None
        return tuple(
            FinishedRow(
                own.request_id,
                canvas.row(row),
                own.plan.max_horizon,
                own.plan.lengths,
                own.probe_cost,
                cost.row(row),
            )
            for row, own in enumerate(done.values())
        )
