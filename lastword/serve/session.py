"""Session: rows of one recipe that share their passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lastword.decoding.loop import Step, decode_steps
from lastword.decoding.planning import PlannedRequest
from lastword.decoding.running_batch import RequestQueue
from lastword.models.base import MaskPredictor
from lastword.recipe.recipe import Recipe

LEAST = 256  # tokens of a prompt that every session has room for


class Session(RequestQueue):
    """Slots for one settled recipe and prompts of up to `longest` tokens.

    Whoever drives it hands in tickets and takes a step at a time. It is over when nobody is at work.
    """

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        *,
        slots: int,
        longest: int,
        columns: int | None = None,
    ) -> None:
        self.recipe, self.slots = recipe, slots
        self.longest = max(LEAST, 1 << (longest - 1).bit_length())  # so that most prompts fit
        self.spent = 0.0  # seconds a row has had of it, to be compared with others
        self.at_work: set[int] = set()  # numbers of tickets, those that were just handed in included
        self._coming: list[PlannedRequest] = []
        self._dropped: set[int] = set()
        self._steps = decode_steps(
            model,
            recipe,
            self,
            max_batch_size=slots,
            max_prompt_tokens=self.longest,
            use_cuda_graphs=True,
            pool_tokens=columns,
        )

    def holds(self, recipe: Recipe, prompt: int) -> bool:
        """Is there room for a row of this recipe, with so long a prompt?"""
        fits = recipe == self.recipe and prompt <= self.longest
        return fits and len(self.at_work) < self.slots

    def add(self, ticket: PlannedRequest) -> None:
        """Let it take a slot before the next step; there must be one."""
        self._coming.append(ticket)
        self.at_work.add(ticket.request_id)

    def drop(self, number: int) -> None:
        """Free its slot before the next step."""
        self._coming = [ticket for ticket in self._coming if ticket.request_id != number]
        self._dropped.add(number)
        self.at_work.discard(number)

    def step(self) -> Step | None:
        """The next pass; None: nobody is at work. What a part or the model raises ends the session."""
        step = next(self._steps, None)
        for done in () if step is None else step.finished:
            self.at_work.discard(done.request_id)
        return step

    def close(self) -> None:
        """Give back what decoding holds, now: the decoding knows its queue, so it is not freed by itself."""
        self._steps.close()

    def take(self, free: int) -> Sequence[PlannedRequest]:
        taken, self._coming = self._coming[:free], self._coming[free:]
        return taken

    def cancelled(self) -> Collection[int]:
        dropped, self._dropped = self._dropped, set()
        return dropped
