"""Hazard, EndedBy, Boundary, TurnEnd: what the end signal is taken for.

Each turns it into a length distribution.

A model learns where end tokens stood in its training rows, so on a canvas of masks the same number
means different things: behind padded answers an end token at k says that the answer ended at k or
before; between packed documents, that some document ended exactly at k. The paper reads both as a
hazard. All readings are arithmetic on the probe's one pass: none costs a pass of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lastword.survival.curve import LengthDistribution, hazard_from
from lastword.survival.isotonic import rising
from lastword.survival.signal import EndSignal


class Reading(ABC):
    """One interpretation of the end signal."""

    name: ClassVar[str] = ""  # what a recipe calls it

    @abstractmethod
    def __call__(self, signal: EndSignal) -> LengthDistribution:
        """The distribution of the length; every row is read by itself."""


@dataclass(frozen=True)
class Hazard(Reading):
    """The paper's: the document end's probability at k is the chance to end at k, having come so far.

    Exact where each slot decides for itself (memoryless lengths, or values read at the frontier of
    left-to-right decoding). On padded training rows the product falls far short of the mean, on
    packed ones it overshoots. Source: "Survival-Guided Length Control for Efficient Diffusion
    Language Models", Algorithm 1.
    """

    name: ClassVar[str] = "hazard"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), Algorithm 1"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        return LengthDistribution.from_hazard(signal.document)


@dataclass(frozen=True)
class EndedBy(Reading):
    """Padded answers: an end token of either kind at k says that the answer ended at k or before.

    So the signal is the distribution function. A model's own curve wavers; it is replaced by the
    nearest one that never falls (isotonic regression, least squares), which keeps the mean.
    """

    name: ClassVar[str] = "ended-by"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        return LengthDistribution.from_cumulative(rising(signal.any.masked_fill(signal.text, 0.0)))


@dataclass(frozen=True)
class Boundary(Reading):
    """Packed documents: the document end's probability at k is the density of boundaries at k.

    The first boundary is the answer's end, so probabilities add up until they reach 1:
    F(k) = min(1, p(1) + ... + p(k)). Exact while a second boundary before k is unlikely; where
    documents may be much shorter than the spread of the answer's length, F rises too soon.
    """

    name: ClassVar[str] = "boundary"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text, 0.0).cumsum(-1)
        return LengthDistribution.from_cumulative(boundaries.clamp(max=1))


@dataclass(frozen=True)
class TurnEnd(Reading):
    """A turn end, then document ends as padding: the turn end at k is the end itself.

    With e(k) for the turn end and d(k) for the document end, e(k) = P(L = k) and d(k) = P(L < k), so
    h(k) = e(k) / (1 - d(k)) is the hazard of the paper, exactly. d is made to rise as in EndedBy.
    """

    name: ClassVar[str] = "turn-end"
    price: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        ended = rising(signal.document.masked_fill(signal.text, 0.0))
        turn = signal.turn.masked_fill(signal.text, 0.0)
        return LengthDistribution.from_hazard(hazard_from(turn, 1 - ended))
