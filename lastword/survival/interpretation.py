"""Interpretations of the end signal: how end-token probabilities become a hazard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.errors import SettingError, WrongTypeError
from lastword.survival.distribution import (
    ROUNDING,
    LengthDistribution,
    check_probabilities,
    conditional_hazard,
)
from lastword.validation import check_int, check_list, check_type


def isotonic(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row's least-squares fit among the sequences that never fall. It keeps the row's sum.

    >>> import torch
    >>> isotonic(torch.tensor([[0.0, 0.4, 0.2, 1.0]])).tolist()[0][1:3]
    [0.30000001192092896, 0.30000001192092896]
    """
    return torch.stack([_isotonic_row(row) for row in values]) if len(values) else values.clone()


def _isotonic_row(row: Tensor) -> Tensor:
    sums: list[float] = []
    counts: list[int] = []
    for value in row.tolist():
        total, count = value, 1
        while sums and sums[-1] * count >= total * counts[-1]:  # the pool before is no lower
            total, count = total + sums.pop(), count + counts.pop()
        sums.append(total)
        counts.append(count)
    pools = torch.tensor(sums, dtype=row.dtype) / torch.tensor(counts, dtype=row.dtype)
    return pools.repeat_interleave(torch.tensor(counts))


class Interpretation(ABC):
    """One interpretation of the end signal."""

    name: ClassVar[str] = ""  # what a recipe calls it

    @abstractmethod
    def __call__(self, signal: EndSignal) -> LengthDistribution:
        """The distribution of the length; every row is read by itself."""


@dataclass(frozen=True)
class Hazard(Interpretation):
    """The paper's: the document end's probability at k is the chance to end at k, having come so far.

    Exact where each slot decides for itself (memoryless lengths, or values read at the frontier of
    left-to-right decoding). On padded training rows the product falls far short of the mean, on
    packed ones it overshoots. Source: "Survival-Guided Length Control for Efficient Diffusion
    Language Models", Algorithm 1.
    """

    name: ClassVar[str] = "hazard"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "Survival-Guided Length Control (Kobyzev, Ghaddar, Cui), Algorithm 1"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        return LengthDistribution.from_hazard(signal.document)


@dataclass(frozen=True)
class EndedBy(Interpretation):
    """Padded answers: an end token of either kind at k says that the answer ended at k or before.

    So the signal is the distribution function. A model's own curve wavers; it is replaced by the
    nearest one that never falls (isotonic regression, least squares), which keeps the mean.
    """

    name: ClassVar[str] = "ended-by"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        return LengthDistribution.from_cumulative(
            isotonic(signal.either_end.masked_fill(signal.text_mask, 0.0))
        )


@dataclass(frozen=True)
class Boundary(Interpretation):
    """Packed documents: the document end's probability at k is the density of boundaries at k.

    The first boundary is the answer's end, so probabilities add up until they reach 1:
    F(k) = min(1, p(1) + ... + p(k)). Exact while a second boundary before k is unlikely; where
    documents may be much shorter than the spread of the answer's length, F rises too soon.
    """

    name: ClassVar[str] = "boundary"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text_mask, 0.0).cumsum(-1)
        return LengthDistribution.from_cumulative(boundaries.clamp(max=1))


@dataclass(frozen=True)
class TurnEnd(Interpretation):
    """A turn end, then document ends as padding: the turn end at k is the end itself.

    With e(k) for the turn end and d(k) for the document end, e(k) = P(L = k) and d(k) = P(L < k), so
    h(k) = e(k) / (1 - d(k)) is the hazard of the paper, exactly. d is made to rise as in EndedBy.
    """

    name: ClassVar[str] = "turn-end"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        ended = isotonic(signal.document.masked_fill(signal.text_mask, 0.0))
        turn = signal.turn.masked_fill(signal.text_mask, 0.0)
        return LengthDistribution.from_hazard(conditional_hazard(turn, 1 - ended))


# The first document's boundary lies in a lump of probability. Its mass should be 1; on a model's own
# curve it is anything between these, and the lump ends in the quietest stretch of SMOOTH slots there.
MIN_LUMP_MASS, MAX_LUMP_MASS = 0.5, 1.3
SMOOTHING_SLOTS = 9


@dataclass(frozen=True)
class FirstBoundary(Interpretation):
    """Packed documents, read up to the quiet stretch between the first boundary and the second.

    Boundary caps the running sum at 1, which errs to one side: a first lump of mass 1.1 is cut at
    1, but one of 0.9 waits for the next document's boundaries to fill the gap, far behind. The first
    document ends exactly once, so here the lump's mass is scaled to 1:
    F(k) = min(1, C(k) / C(v)), where C is the running sum and v the quietest stretch in which
    0.5 <= C < 1.3. A canvas on which C stays below 1 may end inside the lump: nothing is scaled.
    Our own; chosen on validation prompts of the embedded models (docs/measured/readings.md).
    """

    name: ClassVar[str] = "first-boundary"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text_mask, 0.0)
        total = boundaries.cumsum(-1)
        # Where every stretch is as quiet as any other, mass 1 is the best guess.
        noise = _smooth(boundaries) * (1 + (total - 1).abs() / 2)
        valley = torch.where((total >= MIN_LUMP_MASS) & (total < MAX_LUMP_MASS), noise, torch.inf).argmin(-1)
        mass = total.gather(1, valley[:, None])
        whole = (total[:, -1:] < 1) | (mass < MIN_LUMP_MASS)  # no lump, or not all of it
        scaled = total / torch.where(whole, 1.0, mass.clamp(min=ROUNDING))
        return LengthDistribution.from_cumulative(scaled.clamp(max=1))


def _smooth(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    half = SMOOTHING_SLOTS // 2
    padded = torch.nn.functional.pad(values[:, None], (half, half), mode="replicate")
    return torch.nn.functional.avg_pool1d(padded, SMOOTHING_SLOTS, stride=1)[:, 0]


TAIL_SLOTS = 32  # slots that say what lies far behind the answer
PADDED_TAIL = 0.5  # at least so likely is an end token there if answers were padded
PACKED_TAIL = 0.1  # and less than this if documents went on
MIN_TURN_MASS = 0.5  # mass of turn ends in a row of a model that writes them
MIN_R_SQUARED = 0.9  # share of the logit's variation that a curve which never falls explains
MIN_R_SQUARED_PADDED = 0.5  # the share that will do where the end is so likely that only padding explains it
MIN_RISE = 1.0  # nats by which that curve rises at least: a flat signal's is rounding
LOGIT_EPS = 0.01  # nearer to 0 or 1 the logit is noise


@dataclass(frozen=True)
class SignalShape:
    """One row's signal in four numbers."""

    tail: float  # mean probability of an end in the last slots
    mass: float  # expected number of document ends on the canvas
    turn_mass: float  # expected number of turn ends
    r_squared: float  # R^2 of the nearest rising curve to the signal's logit: 1 never falls, 0 is flat

    @classmethod
    def from_signal(cls, signal: EndSignal) -> list[SignalShape]:
        """The shape of every row. Where ends are rare to the last, whether they rise is not looked at."""
        ends = signal.either_end
        tail = ends[:, -TAIL_SLOTS:].mean(-1)
        rise = torch.zeros_like(tail)
        rise[tail >= PACKED_TAIL] = _r_squared(ends[tail >= PACKED_TAIL])
        sums = (signal.document.sum(-1), signal.turn.sum(-1))
        return [cls(*row) for row in zip(*(column.tolist() for column in (tail, *sums, rise)))]


@dataclass(frozen=True)
class Choice:
    """The reading picked for one row, with the reason as a sentence."""

    interpretation: Interpretation
    reason: str


@dataclass(frozen=True)
class Auto(Interpretation):
    """Pick the reading row by row, by the shape of the row's own signal.

    Padding shows as an end token that gets likely and stays so behind the answer, packed documents as
    a low, flat end of the signal, a turn end as mass of its own. A signal that is none of these, such
    as a flat one above 0.1, is read as the paper reads it. `LengthDistribution.explanation` says what was
    picked and why.
    """

    name: ClassVar[str] = "auto"
    cost_summary: ClassVar[str] = "nothing beyond the probe"
    source: ClassVar[str] = "ours"
    candidates: ClassVar[tuple[Interpretation, ...]] = (
        TurnEnd(),
        EndedBy(),
        FirstBoundary(),
        Hazard(),
    )

    def choose(self, signal: EndSignal) -> list[Choice]:
        """What each row is read as."""
        return [_choose(shape) for shape in SignalShape.from_signal(signal)]

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        choices = self.choose(signal)
        readings = tuple(choice.interpretation for choice in choices)
        hazard = torch.empty_like(signal.document)
        for reading in dict.fromkeys(readings):
            rows = [row for row, picked in enumerate(readings) if picked == reading]
            hazard[rows] = reading(signal.select(rows)).hazard
        return LengthDistribution(hazard, tuple(choice.reason for choice in choices), readings)


def _choose(shape: SignalShape) -> Choice:
    steady = MIN_R_SQUARED_PADDED if shape.tail >= PADDED_TAIL else MIN_R_SQUARED
    padded = shape.tail >= PACKED_TAIL and shape.r_squared >= steady
    if padded and shape.turn_mass >= MIN_TURN_MASS:
        return Choice(
            TurnEnd(),
            f"turn end, then padding: turn ends add up to {shape.turn_mass:.2f} and the last slots hold an "
            f"end with chance {shape.tail:.2f}",
        )
    if padded:
        return Choice(
            EndedBy(),
            f"ended by: the last slots hold an end with chance {shape.tail:.2f} and the signal rises "
            f"(R^2 {shape.r_squared:.2f}), as behind padded answers",
        )
    if shape.tail < PACKED_TAIL:
        return Choice(
            FirstBoundary(),
            f"first boundary: ends add up to {shape.mass:.2f} and are rare in the last slots "
            f"({shape.tail:.3f}), as between packed documents",
        )
    return Choice(
        Hazard(),
        f"hazard, as in the paper: the last slots hold an end with chance {shape.tail:.2f} and the signal "
        f"does not rise steadily (R^2 {shape.r_squared:.2f}), which fits neither padding nor packing",
    )


def _r_squared(ends: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
    logit = torch.logit(ends, eps=LOGIT_EPS)
    fit = isotonic(logit)
    spread = (logit - logit.mean(-1, keepdim=True)).square().sum(-1)
    explained = 1 - (logit - fit).square().sum(-1) / spread
    return torch.where(fit[:, -1] - fit[:, 0] < MIN_RISE, 0.0, explained)


MAX_CHUNK_SIZE = 2**23  # 64 MB of float64


def token_probabilities(logits: Float[Tensor, "*batch V"], ids: Sequence[int]) -> Float[Tensor, "*batch N"]:
    """softmax(logits) at `ids`, in float64, on the CPU.

    Only the normaliser needs the whole vocabulary, so it is summed a few columns at a time: 1024
    columns of a 126k vocabulary would need 1 GB in float64, and this needs 64 MB. The CPU waits for
    the device once, at the end: a wait per part made the probe of a large batch slower than its pass.
    """
    is_tensor = isinstance(logits, Tensor)
    if not is_tensor or not logits.is_floating_point() or not logits.ndim:
        raise WrongTypeError(
            f"logits of {logits.dtype if is_tensor else type(logits).__name__} were given; they must be a "
            "tensor of floating-point numbers [..., vocabulary]"
        )
    if not isinstance(ids, (list, tuple)):
        check_list("token_probabilities", "ids", ids, "a list of token ids")
    for one in ids:
        check_int("token_probabilities", "ids", one, minimum=0, maximum=logits.shape[-1] - 1)
    flat = logits.reshape(-1, logits.shape[-1])
    columns = torch.tensor(list(ids), dtype=torch.long, device=logits.device)
    # Apple's GPU has no float64; there the normaliser is summed in float32.
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    parts = []
    for chunk in torch.split(flat, max(1, MAX_CHUNK_SIZE // flat.shape[-1])):
        chunk = chunk.to(wide)
        normaliser = chunk.logsumexp(-1, keepdim=True)
        parts.append((chunk[:, columns] - normaliser).exp())
    picked = torch.cat(parts).cpu().double() if parts else torch.empty(0, len(columns)).double()
    return picked.reshape(*logits.shape[:-1], len(columns))


@dataclass(frozen=True, eq=False)
class EndSignal:
    """The probability of an end token in each of T slots, a row per prompt.

    `document` is the token that closes a document and mostly also fills what lies behind it; `turn`
    the token with which chat models close their turn before it, zero for a model without one. Neither
    is a length distribution yet: what they mean depends on how the model was trained, and a reading
    says what it takes them for. `reached` counts the slots known to be text because a word stands
    in the last of them; it is 0 on a canvas of masks.
    """

    document: Float[Tensor, "B T"]
    turn: Float[Tensor, "B T"]
    text_slots: Int[Tensor, "B"]

    def __post_init__(self) -> None:
        for name in ("document", "turn", "text_slots"):
            check_type("EndSignal", name, getattr(self, name), Tensor, "a tensor")
        if self.text_slots.dtype != torch.long:
            raise WrongTypeError(
                f"an end signal with reached of {self.text_slots.dtype} was given; it must be torch.int64"
            )
        if self.document.shape != self.turn.shape or self.text_slots.shape != self.document.shape[:1]:
            raise SettingError(
                f"an end signal of shapes {tuple(self.document.shape)}, {tuple(self.turn.shape)} and "
                f"{tuple(self.text_slots.shape)} was given; document and turn must be [rows, slots] alike "
                "and reached [rows]"
            )
        for name in ("document", "turn"):
            values = check_probabilities(getattr(self, name), f"{name} end's probability")
            object.__setattr__(self, name, values)

    @classmethod
    def from_probabilities(
        cls, document: Float[Tensor, "B T"], turn: Float[Tensor, "B T"] | None = None
    ) -> EndSignal:
        """The signal on a canvas of masks."""
        check_type("EndSignal.from_probabilities", "document", document, Tensor, "a tensor [rows, slots]")
        turn = torch.zeros_like(document) if turn is None else turn
        return cls(document, turn, torch.zeros(document.shape[:1], dtype=torch.long))

    @property
    def either_end(self) -> Float[Tensor, "B T"]:
        """Probability of either end."""
        return (self.document + self.turn).clamp(max=1)

    @property
    def text_mask(self) -> Bool[Tensor, "B T"]:
        """Slots known to be text: the row's answer cannot end in them."""
        return torch.arange(self.document.shape[-1]) < self.text_slots[:, None]

    @property
    def merged(self) -> EndSignal:
        """The two ends as one."""
        return EndSignal(self.either_end, torch.zeros_like(self.turn), self.text_slots)

    def row(self, index: int) -> EndSignal:
        """One prompt's signal, still as a batch of one."""
        return self.select([index])

    def select(self, rows: Sequence[int]) -> EndSignal:
        """Some prompts' signals."""
        index = list(rows)
        return EndSignal(self.document[index], self.turn[index], self.text_slots[index])

    def first_slots(self, slots: int) -> EndSignal:
        """The signal of a canvas with so many slots."""
        reached = self.text_slots.clamp(max=slots)
        return EndSignal(self.document[:, :slots], self.turn[:, :slots], reached)

    def __len__(self) -> int:
        return len(self.document)
