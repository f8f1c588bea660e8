"""Slots: waiting prompts take free slots, rows that are done leave theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost, Work
from lastword.canvas.state import each, on_device
from lastword.length.policy import Plan, checked_plan
from lastword.models.predictor import MaskPredictor
from lastword.passes.hooks import Hooks
from lastword.passes.prediction import no_token
from lastword.passes.probe import ModelProbe
from lastword.recipe.recipe import Recipe
from lastword.slots.layout import Layout
from lastword.slots.rows import Rows, Stage, checked_canvas, staged
from lastword.survival import LengthDistribution
from lastword.unmask.rule import no_choice

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Planned:
    """Prompts whose lengths were planned together."""

    prompts: list[int]  # their indices
    plan: Plan
    cost: Cost  # of the probes
    begun: Rows  # what each row begins with, on the CPU


@dataclass(frozen=True, eq=False)
class Done:
    """A row that has left its slot."""

    prompt: int  # its index
    canvas: Canvas  # one row, on the CPU
    horizon: int  # slots planned
    lengths: LengthDistribution | None
    probe_cost: Work
    cost: Work


class Slots:
    """So many rows at work; a prompt that waits takes the slot of a row that is done.

    Lengths are planned for as many waiting prompts at once as there are slots, and of those the one with
    the longest answer goes first: what is left at the end is short.
    """

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        prompts: Sequence[Tensor],
        hooks: Hooks,
        layout: Layout,
        *,
        count: int,
        beyond_positions: bool = False,
    ) -> None:
        self._model, self._recipe, self._hooks = model, recipe, hooks
        self._prompts, self._layout, self._beyond_positions = prompts, layout, beyond_positions
        self._waiting = list(range(len(prompts)))
        # Planned together and without a slot yet: which row of which plan.
        self._next: list[tuple[Planned, int]] = []
        # The same of every slot.
        self._taken: list[tuple[Planned, int] | None] = [None] * min(count, len(prompts))
        self.now: Rows  # the rows at work
        self.plan: Plan  # of the rows at work
        self.probe_cost = Cost.nothing(len(self._taken))
        self.stages: list[Stage] = []

    @property
    def prompts(self) -> tuple[int | None, ...]:
        """The index of the prompt in each slot; None: it is free."""
        return tuple(None if own is None else own[0].prompts[own[1]] for own in self._taken)

    def fill(self) -> bool:
        """Let waiting prompts take the free slots; is any row at work?"""
        taken = False
        while None in self._taken and (self._next or self._waiting):
            if not self._next:
                self._plan_next()
            self._take([slot for slot, own in enumerate(self._taken) if own is None])
            taken = True
        if taken:
            self.look()
        return any(self.stages)

    def _take(self, free: list[int]) -> None:
        slots, chosen = free[: len(self._next)], self._next[: len(free)]
        self._next = self._next[len(free) :]
        planned, index = chosen[0][0], torch.tensor([row for _, row in chosen])
        for slot, own in zip(slots, chosen):
            self._taken[slot] = own
        device = self._model.device
        begun = on_device(planned.begun.taken(index), device)
        horizon = planned.plan.horizon[index]
        spent = each(lambda tensor: tensor[index], planned.cost)
        if len(slots) == len(self._prompts):
            self.now, self.plan, self.probe_cost = begun, planned.plan, spent
        elif len(slots) == len(self._taken):
            self.now, self.plan, self.probe_cost = begun, Plan(horizon), spent
        else:
            at = torch.tensor(slots)
            self.now = self.now.replaced(at.to(device), begun)
            self.plan = Plan(self.plan.horizon.index_copy(0, at, horizon))
            self.probe_cost = each(
                lambda old, own: old.index_copy(0, at, own), self.probe_cost, spent
            )

    def look(self) -> None:
        """Ask what the rows wait for: the one time in a step that the device has to be waited for."""
        self.stages = [Stage(code) for code in self.now.stage.tolist()]
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
        left = on_device(self.now.taken(index), CPU)
        self._layout.check(left.canvas, self._recipe)
        for slot in done:
            self._taken[slot] = None
        return tuple(self._done(*own, left, row) for row, own in enumerate(done.values()))

    def _done(self, planned: Planned, own: int, left: Rows, row: int) -> Done:
        lengths = planned.plan.lengths
        return Done(
            planned.prompts[own],
            left.taken(torch.tensor([row])).canvas,
            int(planned.plan.horizon[own]),
            None if lengths is None else lengths.row(own),
            planned.cost.row(own),
            left.cost.row(row),
        )

    def _plan_next(self) -> None:
        count = len(self._taken)
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        prompts, recipe = [self._prompts[index] for index in chosen], self._recipe
        probe = ModelProbe(
            self._model,
            prompts,
            most_passes=recipe.most_passes,
            guided=recipe.sampling.guidance > 0,
            beyond_positions=self._beyond_positions,
        )
        plan = checked_plan(recipe.length.plan(probe), recipe.length, len(prompts))
        canvas = recipe.commit.prepare(plan.canvas(prompts, self._model.ids, self._layout.start))
        canvas = self._hooks.after(None, checked_canvas(canvas, recipe.commit))
        clock = Clock.start(canvas).tick(canvas, recipe.block)
        begun = Rows(
            canvas,
            clock,
            recipe.unmask.begin(canvas),
            plan.state,
            plan.most,
            Cost.nothing(len(prompts)),
            staged(canvas, clock),
        )
        if self._layout.width is not None:
            self._layout.check(canvas, recipe)
            begun = begun.widened(self._layout.width)
        planned, order = Planned(chosen, plan, probe.cost, begun), list(range(len(chosen)))
        if len(self._taken) < len(self._prompts):
            longest = (canvas.prompt_length + canvas.horizon).argsort(descending=True, stable=True)
            order = longest.tolist()
        self._next = [(planned, row) for row in order]
