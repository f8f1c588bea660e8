"""Auto: pick the reading by the shape of the probe, and say which and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.survival.curve import LengthDistribution
from lastword.survival.first_boundary import FirstBoundary
from lastword.survival.isotonic import rising
from lastword.survival.reading import EndedBy, Hazard, Reading, TurnEnd
from lastword.survival.signal import EndSignal

LAST = 32  # slots that say what lies far behind the answer
PADDED = 0.5  # at least so likely is an end token there if answers were padded
PACKED = 0.1  # and less than this if documents went on
VISIBLE = 0.5  # mass of turn ends in a row of a model that writes them
STEADY = 0.9  # share of the logit's variation that a curve which never falls explains
LEANING = 0.5  # the share that will do where the end is so likely that only padding explains it
RISEN = 1.0  # nats by which that curve rises at least: a flat signal's is rounding
CLEAR = 0.01  # nearer to 0 or 1 the logit is noise


@dataclass(frozen=True)
class SignalShape:
    """One row's signal in four numbers."""

    tail: float  # mean probability of an end in the last slots
    mass: float  # expected number of document ends on the canvas
    turns: float  # expected number of turn ends
    rise: float  # R^2 of the nearest rising curve to the signal's logit: 1 never falls, 0 is flat

    @classmethod
    def of(cls, signal: EndSignal) -> list[SignalShape]:
        """The shape of every row. Where ends are rare to the last, whether they rise is not looked at."""
        ends = signal.any
        tail = ends[:, -LAST:].mean(-1)
        rise = torch.zeros_like(tail)
        rise[tail >= PACKED] = _rise(ends[tail >= PACKED])
        sums = (signal.document.sum(-1), signal.turn.sum(-1))
        return [cls(*row) for row in zip(*(column.tolist() for column in (tail, *sums, rise)))]


@dataclass(frozen=True)
class Choice:
    """The reading picked for one row, with the reason as a sentence."""

    reading: Reading
    why: str


@dataclass(frozen=True)
class Auto(Reading):
    """Pick the reading row by row, by the shape of the row's own signal.

    Padding shows as an end token that gets likely and stays so behind the answer, packed documents as
    a low, flat end of the signal, a turn end as mass of its own. A signal that is none of these, such
    as a flat one above 0.1, is read as the paper reads it. `LengthDistribution.read_as` says what was
    picked and why.
    """

    name: ClassVar[str] = "auto"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"
    readings: ClassVar[tuple[Reading, ...]] = (TurnEnd(), EndedBy(), FirstBoundary(), Hazard())

    def choose(self, signal: EndSignal) -> list[Choice]:
        """What each row is read as."""
        return [_choice(shape) for shape in SignalShape.of(signal)]

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        choices = self.choose(signal)
        readings = tuple(choice.reading for choice in choices)
        hazard = torch.empty_like(signal.document)
        for reading in dict.fromkeys(readings):
            rows = [row for row, picked in enumerate(readings) if picked == reading]
            hazard[rows] = reading(signal.rows(rows)).hazard
        return LengthDistribution(hazard, tuple(choice.why for choice in choices), readings)


def _choice(shape: SignalShape) -> Choice:
    steady = LEANING if shape.tail >= PADDED else STEADY
    padded = shape.tail >= PACKED and shape.rise >= steady
    if padded and shape.turns >= VISIBLE:
        return Choice(
            TurnEnd(),
            f"turn end, then padding: turn ends add up to {shape.turns:.2f} and the last slots hold an "
            f"end with chance {shape.tail:.2f}",
        )
    if padded:
        return Choice(
            EndedBy(),
            f"ended by: the last slots hold an end with chance {shape.tail:.2f} and the signal rises "
            f"(R^2 {shape.rise:.2f}), as behind padded answers",
        )
    if shape.tail < PACKED:
        return Choice(
            FirstBoundary(),
            f"first boundary: ends add up to {shape.mass:.2f} and are rare in the last slots "
            f"({shape.tail:.3f}), as between packed documents",
        )
    return Choice(
        Hazard(),
        f"hazard, as in the paper: the last slots hold an end with chance {shape.tail:.2f} and the signal "
        f"does not rise steadily (R^2 {shape.rise:.2f}), which fits neither padding nor packing",
    )


def _rise(ends: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
    logit = torch.logit(ends, eps=CLEAR)
    fit = rising(logit)
    spread = (logit - logit.mean(-1, keepdim=True)).square().sum(-1)
    explained = 1 - (logit - fit).square().sum(-1) / spread
    return torch.where(fit[:, -1] - fit[:, 0] < RISEN, 0.0, explained)
