"""SlowFast: look around slowly, then fill what looked settled fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.ranked import topk_mask
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.validation import check_choice, check_int, check_number


@dataclass(frozen=True)
class SlowFast(UnmaskRule):
    """Cycles of two phases: find out how far the model is sure, then fill that span in parallel.

    Slow-Fast Sampling (2025, arXiv 2506.10848). A slow pass fills the likeliest mask of the block and
    notes the furthest one at least `reach` likely: where this cycle might end. Once the last
    `history` notes spread by less than `spread` (standard deviation, in columns), or after `explore`
    passes, their mean is the cycle's end. Fast passes then fill the span up to it, each time
    every mask at least `sure` likely if there are two or more, else the likeliest. The first fast
    pass sees the whole canvas, later ones nothing behind the span, so they cost less; nothing to its
    right is read until the next cycle, which begins where this one ended.

    The defaults are the paper's. `as_released` does as the released code does: all `explore` slow
    passes run, the note that first settled is the end, and slow passes fill by the rule of fast
    ones; `SlowFast.released()` has its numbers as well. Neither runs the slow passes that the code
    spends on a finished block: they change nothing.
    """

    name: ClassVar[str] = "slow-fast"
    cost_summary: ClassVar[str] = "fewer passes, most of them without what lies behind the span"
    source: ClassVar[str] = "Slow-Fast Sampling (2025, arXiv 2506.10848)"

    high_confidence: float = 0.85
    min_confidence: float = 0.1
    exploration_steps: int = 8
    stability_window: int = 2
    stability_std: float = 1.0
    as_released: bool = False

    def __post_init__(self) -> None:
        check_number("SlowFast", "high_confidence", self.high_confidence, above=0, maximum=1)
        check_number("SlowFast", "min_confidence", self.min_confidence, minimum=0, maximum=1)
        check_int("SlowFast", "exploration_steps", self.exploration_steps, minimum=1)
        check_int("SlowFast", "stability_window", self.stability_window, minimum=1)
        check_number("SlowFast", "stability_std", self.stability_std, minimum=0)
        check_choice("SlowFast", "as_released", self.as_released, True, False)

    @classmethod
    def released(cls) -> SlowFast:
        """The released code with its defaults."""
        return cls(high_confidence=0.9, min_confidence=0.3, exploration_steps=6, as_released=True)

    traits = UnmaskTraits(hides_columns=True)

    def initial_state(self, canvas: Canvas) -> SlowFastState:
        zero = torch.zeros_like(canvas.horizon)
        notes = torch.full((len(zero), self.stability_window), torch.nan, dtype=torch.float64)
        return SlowFastState(zero, notes.to(zero.device), zero, zero - 1, zero.bool(), zero)

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        cycles = self._current(canvas, clock, state)
        behind = torch.arange(canvas.width, device=cycles.end.device) >= cycles.end[:, None]
        return canvas.valid & ~(behind & (cycles.fast_passes > 0)[:, None])

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        cycles, column = self._current(prediction.canvas, clock, state), prediction.columns.index
        last = torch.where(cycles.fast, cycles.end, clock.window.last)
        span = open & (column >= cycles.start[:, None]) & (column < last[:, None])
        confidence = prediction.confidence.masked_fill(~span, -torch.inf)

        sure = confidence >= self.high_confidence
        together = (sure.sum(-1) > 1) & (cycles.fast | self.as_released)
        chosen = torch.where(together[:, None], sure, topk_mask(confidence, span.any(-1).long()))

        reached = torch.where(confidence >= self.min_confidence, column + 1, 0).amax(-1)
        return chosen, self._advance(cycles, torch.maximum(reached, cycles.start + 1))

    def _current(self, canvas: Canvas, clock: Clock, state: State) -> SlowFastState:
        """The cycles this pass belongs to, given what earlier passes really wrote."""
        cycles = SlowFastState(*state)
        column = torch.arange(canvas.width, device=cycles.start.device)
        masks = canvas.masked & clock.window.columns(canvas.width)
        ahead = masks & (column >= cycles.start[:, None])
        filled = cycles.fast & ~(ahead & (column < cycles.end[:, None])).any(-1)
        cycles = cycles.restart(filled, cycles.end)
        # In a new window, and where a caller's hook put masks back behind the cycle, all begins anew.
        ahead = masks & (column >= cycles.start[:, None])
        return cycles.restart(clock.block_start | ~ahead.any(-1), clock.window.first)

    def _advance(self, cycles: SlowFastState, note: Int[Tensor, "B"]) -> SlowFastState:
        """The cycles after a pass in which slow rows noted a possible end."""
        slow = ~cycles.fast
        notes = torch.cat((cycles.end_estimates[:, 1:], note[:, None].double()), dim=1)
        passes = cycles.slow_passes + 1
        # Notes not made yet are NaN and compare false: too few are never settled.
        resolved = notes.std(-1, correction=0) < self.stability_std
        mean = notes.nanmean(-1).long()
        if self.as_released:
            # The first note that settles stays the end, though the slow passes go on.
            done = passes >= self.exploration_steps
            end = torch.where(resolved, note, torch.where(done, mean, -1))
            end = torch.where(cycles.end >= 0, cycles.end, end)
        else:
            done = resolved | (passes >= self.exploration_steps)
            end = torch.where(done, mean, cycles.end)
        return SlowFastState(
            cycles.start,
            torch.where(slow[:, None], notes, cycles.end_estimates),
            torch.where(slow, passes, cycles.slow_passes),
            torch.where(slow, end, cycles.end),
            cycles.fast | done,
            cycles.fast_passes + cycles.fast,
        )


class SlowFastState(NamedTuple):
    """Where each row stands in its cycle; columns count from the left of the canvas."""

    start: Int[Tensor, "B"]
    end_estimates: Float[Tensor, "B W"]  # the last possible ends, oldest first; NaN where none was noted yet
    slow_passes: Int[Tensor, "B"]
    end: Int[Tensor, "B"]  # -1 while it is being looked for
    fast: Bool[Tensor, "B"]  # has the fast phase begun?
    fast_passes: Int[Tensor, "B"]

    def restart(self, rows: Bool[Tensor, "B"], start: Int[Tensor, "B"]) -> SlowFastState:
        """A new cycle for some rows."""
        return SlowFastState(
            torch.where(rows, start, self.start),
            self.end_estimates.masked_fill(rows[:, None], torch.nan),
            self.slow_passes.masked_fill(rows, 0),
            self.end.masked_fill(rows, -1),
            self.fast & ~rows,
            self.fast_passes.masked_fill(rows, 0),
        )
