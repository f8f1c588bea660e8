"""FirstBoundary: the density of boundaries, of which the first document owns exactly one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.survival.curve import ROUNDING, LengthDistribution
from lastword.survival.reading import Reading
from lastword.survival.signal import EndSignal

# The first document's boundary lies in a lump of probability. Its mass should be 1; on a model's own
# curve it is anything between these, and the lump ends in the quietest stretch of SMOOTH slots there.
LEAST, MOST = 0.5, 1.3
SMOOTH = 9


@dataclass(frozen=True)
class FirstBoundary(Reading):
    """Packed documents, read up to the quiet stretch between the first boundary and the second.

    Boundary caps the running sum at 1, which errs to one side: a first lump of mass 1.1 is cut at
    1, but one of 0.9 waits for the next document's boundaries to fill the gap, far behind. The first
    document ends exactly once, so here the lump's mass is scaled to 1:
    F(k) = min(1, C(k) / C(v)), where C is the running sum and v the quietest stretch in which
    0.5 <= C < 1.3. A canvas on which C stays below 1 may end inside the lump: nothing is scaled.
    Our own; chosen on validation prompts of the embedded models (docs/measured/readings.md).
    """

    name: ClassVar[str] = "first-boundary"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text, 0.0)
        total = boundaries.cumsum(-1)
        # Where every stretch is as quiet as any other, mass 1 is the best guess.
        noise = _smooth(boundaries) * (1 + (total - 1).abs() / 2)
        valley = torch.where((total >= LEAST) & (total < MOST), noise, torch.inf).argmin(-1)
        mass = total.gather(1, valley[:, None])
        whole = (total[:, -1:] < 1) | (mass < LEAST)  # no lump, or not all of it
        scaled = total / torch.where(whole, 1.0, mass.clamp(min=ROUNDING))
        return LengthDistribution.from_cumulative(scaled.clamp(max=1))


def _smooth(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    half = SMOOTH // 2
    padded = torch.nn.functional.pad(values[:, None], (half, half), mode="replicate")
    return torch.nn.functional.avg_pool1d(padded, SMOOTH, stride=1)[:, 0]
