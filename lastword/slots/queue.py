"""Queue: who takes the next free slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from torch import Tensor

from lastword.canvas.cost import Work
from lastword.length.policy import Plan
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.recipe.recipe import Recipe
from lastword.slots.ticket import Ticket, planned


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
