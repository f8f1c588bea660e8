"""SlowFast: slow passes estimate how far the model is certain, and fast passes fill that span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import MaskChoice, UnmaskRule, UnmaskTraits, topk_mask
from lastword.validation import check_choice, check_int, check_number, checked_field


@dataclass(frozen=True)
class SlowFast(UnmaskRule):
    """Alternate two phases: estimate how far the model is certain, then fill that span in parallel.

    Slow-Fast Sampling (2025, arXiv 2506.10848). A slow pass fills the most likely mask of the block and estimates the
    end of the span: the last mask with confidence `min_confidence` or more. When the last `stability_window` estimates
    have a standard deviation below `stability_std` columns, or after `exploration_steps` passes, their mean is the end.
    Fast passes then fill the span: all masks with confidence `high_confidence` or more if there are at least two, else
    the most likely one. The first fast pass computes the whole canvas; in later ones the columns after the span are not
    visible, which costs less. The next cycle starts where this span ends.

    The defaults are the paper's. `as_released` follows the released code: all `exploration_steps` slow passes run, the
    first stable estimate is the end, and slow passes fill by the rule of fast ones; `SlowFast.released()` uses
    its defaults as well. The slow passes of that code over a finished block change nothing and are skipped.
    """

    name = "slow-fast"
    cost_summary = "most forward passes omit later columns"
    source = "Slow-Fast Sampling (arXiv 2506.10848)"
    traits = UnmaskTraits(hides_columns=True)

    high_confidence: float = checked_field(0.85, check_number, above=0, maximum=1)
    min_confidence: float = checked_field(0.1, check_number, minimum=0, maximum=1)
    exploration_steps: int = checked_field(8, check_int, minimum=1)
    stability_window: int = checked_field(2, check_int, minimum=1)
    stability_std: float = checked_field(1.0, check_number, minimum=0)
    as_released: bool = checked_field(False, check_choice, True, False)

    @classmethod
    def released(cls) -> SlowFast:
        """Return the rule as in the authors' released code, with the defaults of that code."""
        return cls(high_confidence=0.9, min_confidence=0.3, exploration_steps=6, as_released=True)

    def initial_state(self, canvas: Canvas) -> SlowFastState:
        zero = torch.zeros_like(canvas.horizon)
        estimates = torch.full((len(zero), self.stability_window), torch.nan, dtype=torch.float64)
        return SlowFastState(zero, estimates.to(zero.device), zero, zero - 1, zero.bool(), zero)

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        cycles = self._current(canvas, clock, state)
        behind = torch.arange(canvas.width, device=cycles.end.device) >= cycles.end[:, None]
        return canvas.valid & ~(behind & (cycles.fast_passes > 0)[:, None])

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        cycles, column = self._current(prediction.canvas, clock, state), prediction.columns.index
        last = torch.where(cycles.fast, cycles.end, clock.window.last)
        span = open_masks & (column >= cycles.start[:, None]) & (column < last[:, None])
        confidence = prediction.confidence.masked_fill(~span, -torch.inf)

        confident = confidence >= self.high_confidence
        parallel = (confident.sum(-1) > 1) & (cycles.fast | self.as_released)
        chosen = torch.where(parallel[:, None], confident, topk_mask(confidence, span.any(-1).long()))

        estimate = torch.where(confidence >= self.min_confidence, column + 1, 0).amax(-1)
        return chosen, self._advance(cycles, torch.maximum(estimate, cycles.start + 1))

    def _current(self, canvas: Canvas, clock: Clock, state: State) -> SlowFastState:
        """Return the state before this pass; rows with a filled span or a new window start another cycle."""
        cycles = SlowFastState(*state)
        column = torch.arange(canvas.width, device=cycles.start.device)
        masks = canvas.masked & clock.window.columns(canvas.width)
        ahead = masks & (column >= cycles.start[:, None])
        filled = cycles.fast & ~(ahead & (column < cycles.end[:, None])).any(-1)
        cycles = cycles.restart(filled, cycles.end)
        # Restart in a new window, and where a hook masked columns again that lie before the cycle.
        ahead = masks & (column >= cycles.start[:, None])
        return cycles.restart(clock.block_start | ~ahead.any(-1), clock.window.first)

    def _advance(self, cycles: SlowFastState, estimate: Int[Tensor, "B"]) -> SlowFastState:
        """Return the state after a pass, given the end of the span that the pass estimated for each row."""
        slow = ~cycles.fast
        estimates = torch.cat((cycles.end_estimates[:, 1:], estimate[:, None].double()), dim=1)
        passes = cycles.slow_passes + 1
        # Missing estimates are NaN, and comparisons with NaN are false, so too few estimates are never stable.
        stable = estimates.std(-1, correction=0) < self.stability_std
        mean = estimates.nanmean(-1).long()
        if self.as_released:
            # The first stable estimate remains the end while slow passes continue.
            done = passes >= self.exploration_steps
            end = torch.where(stable, estimate, torch.where(done, mean, -1))
            end = torch.where(cycles.end >= 0, cycles.end, end)
        else:
            done = stable | (passes >= self.exploration_steps)
            end = torch.where(done, mean, cycles.end)
        return cycles._replace(
            end_estimates=torch.where(slow[:, None], estimates, cycles.end_estimates),
            slow_passes=torch.where(slow, passes, cycles.slow_passes),
            end=torch.where(slow, end, cycles.end),
            fast=cycles.fast | done,
            fast_passes=cycles.fast_passes + cycles.fast,
        )


class SlowFastState(NamedTuple):
    """The progress of each row in its cycle of slow, then fast passes; the span is columns `start` up to `end`."""

    start: Int[Tensor, "B"]
    end_estimates: Float[Tensor, "B W"]  # the latest estimates, oldest first; NaN for missing ones
    slow_passes: Int[Tensor, "B"]
    end: Int[Tensor, "B"]  # -1 while it is unknown
    fast: Bool[Tensor, "B"]  # whether the fast phase has started
    fast_passes: Int[Tensor, "B"]

    def restart(self, rows: Bool[Tensor, "B"], start: Int[Tensor, "B"]) -> SlowFastState:
        """Return the state in which `rows` begin a new cycle at column `start`."""
        return SlowFastState(
            torch.where(rows, start, self.start),
            self.end_estimates.masked_fill(rows[:, None], torch.nan),
            self.slow_passes.masked_fill(rows, 0),
            self.end.masked_fill(rows, -1),
            self.fast & ~rows,
            self.fast_passes.masked_fill(rows, 0),
        )
