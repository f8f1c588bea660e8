"""RhoEos: keep the share of masks that are predicted to be end tokens within a range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.length.daedal import Resizer, end_confidence
from lastword.policies.length.policy import Plan, Probe, resolved_slots
from lastword.validation import check_choice, check_int, check_number, checked_field

MAX_MULTIPLIER = 8
DENSITY_INTERVAL = 0.1


@dataclass(frozen=True)
class RhoEos(Resizer):
    """Start with `initial` slots; grow while too few end tokens are predicted, shrink while too many are.

    rho-EOS (yjyddq/rho-EOS, arXiv 2601.22527). The density is the share of masks whose most likely token is the end
    token. Below `rho_low` the answer grows by a multiple of `expansion_factor` masks; above `rho_high` it loses a
    multiple of them at its end. The multiple depends on the distance from the range in steps of 0.1, rounded up: it
    doubles with every step (`scheduler="exp"`), equals their number (`"linear"`) or is 1 (`"const"`), and never exceeds
    8. Resizing stops after `max_adjust_steps` passes, and in a row that reached `limit`. Costs no forward pass but
    needs the logits of the whole answer. The paper decodes with AboveThreshold(0.9) and block=32.

    The released code uses DAEDAL's end confidence over `eos_window` slots instead of the density: `signal="released"`.
    Other differences from it: a crop keeps written text and at least one slot; a distance that is a whole number of
    steps up to rounding counts as that number; rows of a batch finish independently; decoding continues until no mask
    is left (the released code stops after `limit` passes); and blocks count from the first slot of the answer (in the
    released code they restart where a crop cut through a finished block).
    """

    name = "rho-eos"
    cost_summary = "no probe; logits of the whole answer"
    source = "rho-EOS (arXiv 2601.22527)"

    rho_low: float = checked_field(0.4, check_number, minimum=0, maximum=1)
    rho_high: float = 0.6
    expansion_factor: int = checked_field(8, check_int, minimum=1)
    scheduler: str = checked_field("exp", check_choice, "exp", "linear", "const")
    max_adjust_steps: int = checked_field(64, check_int, minimum=0)
    signal: str = checked_field("density", check_choice, "density", "released")
    eos_window: int = checked_field(32, check_int, minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("RhoEos", "rho_high", self.rho_high, minimum=self.rho_low, maximum=1)

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.initial)))

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        limit = resolved_slots(self, self.limit)
        resizable = (clock.step < self.max_adjust_steps) & (canvas.horizon < limit)
        resizable = resizable & prediction.covers_all(canvas.answer)
        if not bool(resizable.any()):
            return canvas, state
        change = torch.where(resizable, self.length_change(prediction), 0)
        shorter = torch.maximum(canvas.horizon + change.clamp(max=0), canvas.min_horizon)
        longer = torch.minimum(change.clamp(min=0), (limit - canvas.horizon).clamp(min=0))
        return canvas.crop(shorter).extend(longer), state

    def length_change(self, prediction: Prediction) -> Int[Tensor, "B"]:
        """Return the number of slots by which each row should grow, or shrink if it is negative."""
        density = self.signal == "density"
        signal = self.density(prediction) if density else end_confidence(prediction, self.eos_window)
        below, above = self.rho_low - signal, signal - self.rho_high
        sign = (below > 0).long() - (above > 0).long()
        # The tolerance keeps a distance of 0.2 at 2 steps where floating point makes it 2.0000000000000004.
        steps = (torch.maximum(below, above) / DENSITY_INTERVAL - 1e-9).ceil().clamp(min=1)
        multiples = {"exp": 2 ** (steps - 1), "linear": steps, "const": torch.ones_like(steps)}
        multiple = multiples[self.scheduler].clamp(max=MAX_MULTIPLIER).long()
        return sign * multiple * self.expansion_factor

    def density(self, prediction: Prediction) -> Float[Tensor, "B"]:
        """Return the share of each row's masks whose most likely token is the end token; 0 if no mask is left."""
        masks = prediction.columns.gather(prediction.canvas.masked)
        ending = masks & (prediction.argmax_tokens == prediction.canvas.ids.end)
        return ending.sum(-1).double() / masks.sum(-1).clamp(min=1)
