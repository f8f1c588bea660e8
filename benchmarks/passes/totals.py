"""Totals of a decoding: forward passes, computed tokens, padding and the use of the batch."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lastword.decoding.forward import Hooks
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import FinishedRow
from lastword.decoding.step import supports_static_shapes


class StepTotals:
    """Totals over the steps of one decoding: forward passes, computed tokens, rows in use, finished rows.

    Computed tokens are counted where shapes are static: a pass inside a block computes the block in every row
    of the batch, and a pass that starts blocks computes what its rows need. With dynamic shapes the padding
    is not known without a device synchronization, so `useful` is None.
    """

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts = num_prompts
        self._static: bool | None = None
        self._started: set[int] = set()
        self._rows_in_use = self._rows_available = 0  # summed over the passes while prompts were waiting
        self._row_costs: dict[int, tuple[int, int]] = {}  # forward passes and tokens computed, by prompt
        self._computed = 0
        self.forward_passes = 0
        self.finished: list[FinishedRow] = []

    @classmethod
    def of(cls, steps: Iterable[Step], num_prompts: int) -> StepTotals:
        """Return the totals of all steps of a decoding of `num_prompts` prompts."""
        totals = cls(num_prompts)
        for step in steps:
            totals.add(step)
        return totals

    @property
    def useful(self) -> float | None:
        """Share of the computed tokens that belong to an unfinished row and are not padding."""
        needed = sum(row.cost.tokens_computed for row in self.finished)
        return needed / self._computed if self._computed else None

    @property
    def occupancy(self) -> float | None:
        """Mean share of the batch in use while prompts were waiting; None if none had to wait."""
        return self._rows_in_use / self._rows_available if self._rows_available else None

    def add(self, step: Step) -> None:
        """Add a step; to be called before the next step is computed."""
        if self._static is None:
            self._static = supports_static_shapes(step.canvas.device, step.recipe, Hooks(), len(step.request_ids))
        prompts = [prompt for prompt in step.request_ids if prompt is not None]
        passes = self._passes_of(step) if self._static else 1
        self.forward_passes += passes
        self._started.update(prompts)
        if len(self._started) < self._num_prompts:
            self._rows_in_use += passes * len(prompts)
            self._rows_available += passes * len(step.request_ids)
        self.finished += step.finished

    def _passes_of(self, step: Step) -> int:
        """Return the forward passes of a step, several if a graph was replayed, and add their tokens."""
        costs = (step.cost.forward_passes, step.cost.tokens_computed, step.clock.block_start)
        passes, tokens, starts = 0, 0, False
        for prompt, row_passes, row_tokens, start in zip(step.request_ids, *torch.stack(costs).tolist()):
            if prompt is not None:
                before = self._row_costs.get(prompt, (0, 0))
                self._row_costs[prompt] = (row_passes, row_tokens)
                passes = max(passes, row_passes - before[0])
                tokens += row_tokens - before[1]
                starts |= bool(start) and row_passes > before[0]
        in_block = not starts and step.recipe.cache.traits.stores_states
        block = step.recipe.block or 0
        self._computed += len(step.request_ids) * block * passes if in_block else tokens
        return passes
