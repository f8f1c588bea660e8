"""Tally: what the steps of one decoding add up to."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import supports_static_shapes
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import FinishedRow


class Tally:
    """Passes that ran, columns that they computed, slots in use, and the rows that are done.

    Columns are counted where shapes are fixed: a pass within a block computes the block in every slot,
    whoever is in it, and one that opens blocks computes what its rows need. Elsewhere nothing is asked of
    the device, and what is padded is not known.
    """

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._fixed: bool | None = None
        self._begun: set[int] = set()
        self._held = self._offered = 0  # slots, by pass, as long as a prompt waits
        self._spent: dict[int, tuple[int, int]] = {}  # passes and columns of rows, by prompt
        self._computed = 0
        self.passes = 0
        self.done: list[FinishedRow] = []

    @property
    def useful(self) -> float | None:
        """The share of computed columns that belong to an unfinished row and are no padding."""
        own = sum(row.cost.tokens_computed for row in self.done)
        return own / self._computed if self._computed else None

    @property
    def occupancy(self) -> float | None:
        """The mean share of slots that held an unfinished row as long as prompts waited; None: none did."""
        return self._held / self._offered if self._offered else None

    def add(self, step: Step) -> None:
        """One more step, before the next one is asked for."""
        if self._fixed is None:
            self._fixed = supports_static_shapes(
                step.canvas.device, step.recipe, Hooks(), len(step.request_ids)
            )
        held = [prompt for prompt in step.request_ids if prompt is not None]
        passes = self._counted(step) if self._fixed else 1
        self.passes += passes
        self._begun.update(held)
        if len(self._begun) < self._prompts:
            self._held += passes * len(held)
            self._offered += passes * len(step.request_ids)
        self.done += step.finished

    def _counted(self, step: Step) -> int:
        """The passes of a step, which may be several where they were replayed; adds up their columns."""
        told = (step.cost.forward_passes, step.cost.tokens_computed, step.clock.block_start)
        passes, columns, opens = 0, 0, False
        for prompt, spent, wide, opening in zip(step.request_ids, *torch.stack(told).tolist()):
            if prompt is not None:
                before = self._spent.get(prompt, (0, 0))
                self._spent[prompt] = (spent, wide)
                passes = max(passes, spent - before[0])
                columns += wide - before[1]
                opens |= bool(opening) and spent > before[0]
        within = not opens and step.recipe.cache.traits.keeps
        block = step.recipe.block or 0
        self._computed += len(step.request_ids) * block * passes if within else columns
        return passes


def tallied(steps: Iterable[Step], prompts: int) -> Tally:
    """All steps of a decoding of so many prompts."""
    tally = Tally(prompts)
    for step in steps:
        tally.add(step)
    return tally
