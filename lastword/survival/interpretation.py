"""The end signal (end-token probabilities per slot) and its interpretations as a length distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.errors import SettingError, WrongTypeError
from lastword.survival.distribution import ROUNDING, LengthDistribution, check_probabilities, conditional_hazard
from lastword.validation import Part, check_int, check_list, check_type

MAX_CHUNK_SIZE = 2**23  # numbers per chunk; 64 MB in float64
MAX_CHUNK_SIZE_CPU = 2**17  # 1 MB, which fits into the cache of a core: five times as fast


def token_probabilities(logits: Float[Tensor, "*batch V"], ids: Sequence[int]) -> Float[Tensor, "*batch N"]:
    """Return softmax(logits) at `ids`, in float64 on the CPU.

    Only the normaliser needs the whole vocabulary, so it is summed for a few columns at a time: 1024 columns of a
    vocabulary of 126k would take 1 GB in float64. The host waits for the device once, at the end.
    """
    is_tensor = isinstance(logits, Tensor)
    if not is_tensor or not logits.is_floating_point() or not logits.ndim:
        raise WrongTypeError(
            f"logits of {logits.dtype if is_tensor else type(logits).__name__} were given; they must be a tensor of "
            "floating-point numbers [..., vocabulary]"
        )
    check_list("token_probabilities", "ids", ids, "a list of token ids")
    for token in ids:
        check_int("token_probabilities", "ids", token, minimum=0, maximum=logits.shape[-1] - 1)
    flat = logits.reshape(-1, logits.shape[-1])
    columns = torch.tensor(list(ids), dtype=torch.long, device=logits.device)
    # Apple's GPU has no float64; there the normaliser is summed in float32.
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    size = MAX_CHUNK_SIZE_CPU if logits.device.type == "cpu" else MAX_CHUNK_SIZE
    parts = []
    for chunk in torch.split(flat, max(1, size // flat.shape[-1])):
        chunk = chunk.to(wide)
        normaliser = chunk.logsumexp(-1, keepdim=True)
        parts.append((chunk[:, columns] - normaliser).exp())
    picked = torch.cat(parts).cpu().double() if parts else torch.empty(0, len(columns)).double()
    return picked.reshape(*logits.shape[:-1], len(columns))


@dataclass(frozen=True, eq=False)
class EndSignal:
    """The probability of an end token in each of T slots, one row per prompt.

    `document` is the probability of the token that closes a document and usually also fills the canvas after it; `turn`
    is that of the token with which a chat model closes its turn, zero for models without one. Their meaning depends on
    how the model was trained: see `Interpretation`. The first `text_slots` slots are known to be text, because a word
    stands in the last of them; a canvas of masks has none.
    """

    document: Float[Tensor, "B T"]
    turn: Float[Tensor, "B T"]
    text_slots: Int[Tensor, "B"]

    def __post_init__(self) -> None:
        for name in ("document", "turn", "text_slots"):
            check_type("EndSignal", name, getattr(self, name), Tensor, "a tensor")
        if self.text_slots.dtype != torch.long:
            raise WrongTypeError(f"an end signal with text_slots of {self.text_slots.dtype} was given; use torch.int64")
        if self.document.shape != self.turn.shape or self.text_slots.shape != self.document.shape[:1]:
            raise SettingError(
                f"an end signal of shapes {tuple(self.document.shape)}, {tuple(self.turn.shape)} and "
                f"{tuple(self.text_slots.shape)} was given; document and turn must both be [rows, slots] and "
                "text_slots [rows]"
            )
        for name in ("document", "turn"):
            values = check_probabilities(getattr(self, name), f"{name}-end probability")
            object.__setattr__(self, name, values)

    @classmethod
    def from_probabilities(cls, document: Float[Tensor, "B T"], turn: Float[Tensor, "B T"] | None = None) -> EndSignal:
        """Return the signal of a canvas that contains only masks; without `turn`, turn ends have probability 0."""
        check_type("EndSignal.from_probabilities", "document", document, Tensor, "a tensor [rows, slots]")
        turn = torch.zeros_like(document) if turn is None else turn
        return cls(document, turn, torch.zeros(document.shape[:1], dtype=torch.long))

    @property
    def either_end(self) -> Float[Tensor, "B T"]:
        """The probability of a document end or a turn end in each slot."""
        return (self.document + self.turn).clamp(max=1)

    @property
    def text_mask(self) -> Bool[Tensor, "B T"]:
        """The slots known to be text: the answer cannot end in them."""
        return torch.arange(self.document.shape[-1]) < self.text_slots[:, None]

    @property
    def merged(self) -> EndSignal:
        """The signal with turn ends counted as document ends."""
        return EndSignal(self.either_end, torch.zeros_like(self.turn), self.text_slots)

    def row(self, index: int) -> EndSignal:
        """Return the signal of one row, as a batch of one."""
        return self.select([index])

    def select(self, rows: Sequence[int]) -> EndSignal:
        """Return the signal of the rows with these indices."""
        index = list(rows)
        return EndSignal(self.document[index], self.turn[index], self.text_slots[index])

    def first_slots(self, slots: int) -> EndSignal:
        """Return the signal of the first `slots` slots."""
        return EndSignal(self.document[:, :slots], self.turn[:, :slots], self.text_slots.clamp(max=slots))

    def __len__(self) -> int:
        return len(self.document)


def isotonic(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the least-squares fit of each row by a sequence that never falls. It keeps the row's sum.

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
        while sums and sums[-1] * count >= total * counts[-1]:  # the mean of the previous pool is not lower
            total, count = total + sums.pop(), count + counts.pop()
        sums.append(total)
        counts.append(count)
    pools = torch.tensor(sums, dtype=row.dtype) / torch.tensor(counts, dtype=row.dtype)
    return pools.repeat_interleave(torch.tensor(counts))


class Interpretation(Part):
    """The meaning of end-token probabilities, which depends on how a model was trained."""

    cost_summary: ClassVar[str] = "nothing beyond the probe"

    @abstractmethod
    def __call__(self, signal: EndSignal) -> LengthDistribution:
        """Return the length distribution of every row; rows are independent."""


@dataclass(frozen=True)
class Hazard(Interpretation):
    """The paper's interpretation: the document-end probability at k is the hazard P(L = k | L >= k).

    Exact if the probability at k does not depend on earlier ends (memoryless lengths, or values read at the frontier of
    left-to-right decoding). For models trained on padded rows the mean is far too small; on packed rows, too large.
    """

    name = "hazard"
    source = "Kobyzev et al., 2026 (arXiv 2608.26374), Algorithm 1"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        return LengthDistribution.from_hazard(signal.document)


@dataclass(frozen=True)
class EndedBy(Interpretation):
    """For answers padded with end tokens: the probability of an end token at k is P(L <= k).

    An end token of either kind at k means that the answer ended at k or before. The curve of a real model is not
    monotone; it is replaced by the nearest one that never falls (isotonic regression, least squares), which keeps the
    mean.
    """

    name = "ended-by"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        ended = isotonic(signal.either_end.masked_fill(signal.text_mask, 0.0))
        return LengthDistribution.from_cumulative(ended)


@dataclass(frozen=True)
class Boundary(Interpretation):
    """For packed documents: the document-end probability at k is P(some document ends at k).

    The first boundary is the end of the answer, so probabilities are summed up to 1: F(k) = min(1, p(1) + ... + p(k)).
    Exact as long as a second boundary before k is unlikely; where documents may be much shorter than the spread of the
    answer's length, F rises too soon.
    """

    name = "boundary"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text_mask, 0.0).cumsum(-1)
        return LengthDistribution.from_cumulative(boundaries.clamp(max=1))


@dataclass(frozen=True)
class TurnEnd(Interpretation):
    """For answers with a turn end, then padding: the turn-end probability at k is P(L = k).

    The padding consists of document ends. With e(k) for the turn end and d(k) for the document end, e(k) = P(L = k) and
    d(k) = P(L < k). The paper's hazard is then exactly h(k) = e(k) / (1 - d(k)). d is made monotone as in EndedBy.
    """

    name = "turn-end"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        ended = isotonic(signal.document.masked_fill(signal.text_mask, 0.0))
        turn = signal.turn.masked_fill(signal.text_mask, 0.0)
        return LengthDistribution.from_hazard(conditional_hazard(turn, 1 - ended))


# The boundary of the first document is a peak of probability. Its mass should be 1; for a real model it lies between
# these bounds. The peak ends at the quietest SMOOTHING_SLOTS slots at which the running sum is between the bounds.
MIN_PEAK_MASS, MAX_PEAK_MASS = 0.5, 1.3
SMOOTHING_SLOTS = 9


@dataclass(frozen=True)
class FirstBoundary(Interpretation):
    """For packed documents: like Boundary, up to the quiet stretch after the first boundary.

    Boundary caps the running sum at 1, which errs to one side: a first peak of mass 1.1 is cut at 1, but a peak of 0.9
    is filled up by the boundaries of the next document, far to the right. The first document ends exactly once, so the
    mass of the first peak is scaled to 1: F(k) = min(1, C(k) / C(v)), where C is the running sum and v the quietest
    stretch with 0.5 <= C < 1.3. If C stays below 1, the canvas may end inside the peak, and nothing is scaled. Chosen
    on validation prompts of the embedded models (docs/measured/interpretations.md).
    """

    name = "first-boundary"

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        boundaries = signal.document.masked_fill(signal.text_mask, 0.0)
        total = boundaries.cumsum(-1)
        half = SMOOTHING_SLOTS // 2
        padded = torch.nn.functional.pad(boundaries[:, None], (half, half), mode="replicate")
        smooth = torch.nn.functional.avg_pool1d(padded, SMOOTHING_SLOTS, stride=1)[:, 0]
        # If all stretches are equally quiet, the one nearest to mass 1 is chosen.
        noise = smooth * (1 + (total - 1).abs() / 2)
        valley = torch.where((total >= MIN_PEAK_MASS) & (total < MAX_PEAK_MASS), noise, torch.inf).argmin(-1)
        mass = total.gather(1, valley[:, None])
        unscaled = (total[:, -1:] < 1) | (mass < MIN_PEAK_MASS)  # no peak, or only part of it
        scaled = total / torch.where(unscaled, 1.0, mass.clamp(min=ROUNDING))
        return LengthDistribution.from_cumulative(scaled.clamp(max=1))


TAIL_SLOTS = 32  # number of last slots of the canvas, usually far after the answer
PADDED_TAIL = 0.5  # an end token in these slots is at least this likely if answers were padded
PACKED_TAIL = 0.1  # and is less likely than this if the next document followed
MIN_TURN_MASS = 0.5  # least expected number of turn ends in a row if the model writes them
MIN_R_SQUARED = 0.9  # least share of the logit's variance that a rising curve explains in a padded row
MIN_R_SQUARED_PADDED = 0.5  # the same if the tail is at least PADDED_TAIL
MIN_RISE = 1.0  # nats; a curve that rises less is flat up to rounding
LOGIT_EPS = 0.01  # probabilities nearer to 0 or 1 than this have noisy logits


@dataclass(frozen=True)
class Choice:
    """The interpretation that `Auto` chose for a row, with the reason as a sentence."""

    interpretation: Interpretation
    reason: str


@dataclass(frozen=True)
class Auto(Interpretation):
    """Choose the interpretation of each row by the shape of its signal.

    Padded answers show as an end token that becomes likely and stays likely, packed documents as a low, flat end of the
    signal, and a turn end as probability mass on the turn-end token. A signal of another shape, such as a flat one
    above 0.1, is interpreted by Hazard, as in the paper. `LengthDistribution.explanation` has the reason.
    """

    name = "auto"
    candidates: ClassVar[tuple[Interpretation, ...]] = (TurnEnd(), EndedBy(), FirstBoundary(), Hazard())

    def choose(self, signal: EndSignal) -> list[Choice]:
        """Return the choice for every row."""
        ends = signal.either_end
        tail = ends[:, -TAIL_SLOTS:].mean(-1)
        r_squared = torch.zeros_like(tail)  # not needed for rows that end like packed documents
        r_squared[tail >= PACKED_TAIL] = _r_squared(ends[tail >= PACKED_TAIL])
        columns = (tail, signal.document.sum(-1), signal.turn.sum(-1), r_squared)
        return [_choose(*row) for row in zip(*(column.tolist() for column in columns))]

    def __call__(self, signal: EndSignal) -> LengthDistribution:
        choices = self.choose(signal)
        chosen = tuple(choice.interpretation for choice in choices)
        hazard = torch.empty_like(signal.document)
        for interpretation in dict.fromkeys(chosen):
            rows = [row for row, other in enumerate(chosen) if other == interpretation]
            hazard[rows] = interpretation(signal.select(rows)).hazard
        return LengthDistribution(hazard, tuple(choice.reason for choice in choices), chosen)


def _choose(tail: float, mass: float, turn_mass: float, r_squared: float) -> Choice:
    """Return the choice for a row: `tail` is the mean end probability in its last slots, masses are sums of ends."""
    min_r_squared = MIN_R_SQUARED_PADDED if tail >= PADDED_TAIL else MIN_R_SQUARED
    padded = tail >= PACKED_TAIL and r_squared >= min_r_squared
    last = f"an end token in the last slots has probability {tail:.3g}"
    if padded and turn_mass >= MIN_TURN_MASS:
        return Choice(TurnEnd(), f"turn end, then padding: turn ends add up to {turn_mass:.2f}, and {last}")
    rise = f"(R^2 {r_squared:.2f})"
    if padded:
        return Choice(EndedBy(), f"ended by: {last}, and the signal rises {rise}, as behind padded answers")
    if tail < PACKED_TAIL:
        reason = f"first boundary: ends add up to {mass:.2f}, and {last}, as between packed documents"
        return Choice(FirstBoundary(), reason)
    return Choice(
        Hazard(),
        f"hazard, as in the paper: {last}, and the signal does not rise steadily {rise}, which fits neither padding "
        "nor packing",
    )


def _r_squared(ends: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """Return R^2 of the nearest rising curve to the logit of each row: 1 if it never falls, 0 if it is flat."""
    logit = torch.logit(ends, eps=LOGIT_EPS)
    fit = isotonic(logit)
    spread = (logit - logit.mean(-1, keepdim=True)).square().sum(-1)
    explained = 1 - (logit - fit).square().sum(-1) / spread
    return torch.where(fit[:, -1] - fit[:, 0] < MIN_RISE, 0.0, explained)
