"""RhoEos: keep the share of masks that would end the answer within a band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.length.daedal import Resizer, end_confidence
from lastword.policies.length.policy import Plan, Probe, resolved_slots
from lastword.validation import check_choice, check_int, check_number

MAX_MULTIPLIER = 8
DENSITY_INTERVAL = 0.1


@dataclass(frozen=True)
class RhoEos(Resizer):
    """Start with `initial` slots; after a pass, grow if too few masks would end and shrink if too many.

    rho-EOS (yjyddq/rho-EOS, arXiv 2601.22527). The density is the share of masks whose likeliest token
    is the end token. Below `low` the answer grows by some `unit`s of masks, above `high` it loses some
    at its end. How many follows the gap in steps of 0.1, rounded up: as many (`pace="linear"`), twice
    as many with each step (`"exp"`), or always one (`"const"`); never more than 8. Resizing ends after
    `passes` passes, and for a row that reached `limit`. Costs no pass, but needs logits of the whole
    answer in each. The fill rule of the paper is AboveThreshold(0.9) with block=32, which also fills a
    candidate at exactly 0.9; the released code fills strictly above it.

    The released code steers by DAEDAL's trailing end confidence over `window` slots instead of the
    density: `signal="released"`. Where we differ from it: a crop keeps written text and at least one
    slot (theirs may cut both to nothing), a gap that is a whole number of steps up to rounding is that
    number, a finished row is done whatever its batch does, and decoding goes on until no mask is
    left (theirs stops after `limit` passes). Blocks count from the answer's first slot; theirs start
    anew where a crop cut through a finished block.
    """

    name: ClassVar[str] = "rho-eos"
    cost_summary: ClassVar[str] = "no probe; logits of the whole answer in every pass"
    source: ClassVar[str] = "rho-EOS (arXiv 2601.22527)"

    rho_low: float = 0.4
    rho_high: float = 0.6
    expansion_factor: int = 8
    scheduler: str = "exp"
    max_adjust_steps: int = 64
    signal: str = "density"
    eos_window: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("expansion_factor", "eos_window"):
            check_int("RhoEos", name, getattr(self, name), minimum=1)
        check_int("RhoEos", "max_adjust_steps", self.max_adjust_steps, minimum=0)
        check_number("RhoEos", "rho_low", self.rho_low, minimum=0, maximum=1)
        check_number("RhoEos", "rho_high", self.rho_high, minimum=self.rho_low, maximum=1)
        check_choice("RhoEos", "scheduler", self.scheduler, "exp", "linear", "const")
        check_choice("RhoEos", "signal", self.signal, "density", "released")

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.initial)))

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        limit = resolved_slots(self, self.limit)
        heard = (clock.step < self.max_adjust_steps) & (canvas.horizon < limit)
        heard = heard & prediction.covers_all(canvas.answer)
        if not bool(heard.any()):
            return canvas, state
        change = torch.where(heard, self.length_change(prediction), 0)
        shorter = torch.maximum(canvas.horizon + change.clamp(max=0), canvas.min_horizon)
        longer = torch.minimum(change.clamp(min=0), (limit - canvas.horizon).clamp(min=0))
        return canvas.crop(shorter).extend(longer), state

    def length_change(self, prediction: Prediction) -> Int[Tensor, "B"]:
        """By how many slots each row should grow, or shrink where negative."""
        signal = self.density(prediction) if self.signal == "density" else self.released_signal(prediction)
        below, above = self.rho_low - signal, signal - self.rho_high
        sign = (below > 0).long() - (above > 0).long()
        # The tolerance keeps a gap of 0.2 at 2 segments where floating point makes it 2.0000000000000004.
        segments = (torch.maximum(below, above) / DENSITY_INTERVAL - 1e-9).ceil().clamp(min=1)
        units = {
            "exp": 2 ** (segments - 1),
            "linear": segments,
            "const": torch.ones_like(segments),
        }[self.scheduler]
        return sign * units.clamp(max=MAX_MULTIPLIER).long() * self.expansion_factor

    def density(self, prediction: Prediction) -> Float[Tensor, "B"]:
        """The share of masks at which the model would end; 0 where no mask is left."""
        masks = prediction.columns.gather(prediction.canvas.masked)
        ending = masks & (prediction.argmax_tokens == prediction.canvas.ids.end)
        return ending.sum(-1).double() / masks.sum(-1).clamp(min=1)

    def released_signal(self, prediction: Prediction) -> Float[Tensor, "B"]:
        return end_confidence(prediction, self.eos_window)
