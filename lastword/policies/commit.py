"""Early-commit rules: when to fill all remaining masks of a row at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Window
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError, WrongTypeError
from lastword.validation import check_choice, check_int, check_list, check_number, short_repr


@dataclass(frozen=True)
class CommitTraits:
    """What a rule says of itself: what other parts have to be ready for."""

    reads_answer: bool = True  # a rule that commits needs candidates for every mask
    # Does it count slots from the left, so that inserting some misleads it?
    uses_slot_indices: bool = False
    # Whether `ready` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False


class CommitRule(ABC):
    """Which rows may fill every remaining mask at once: when more refining changes nothing."""

    @property
    def traits(self) -> CommitTraits:
        return CommitTraits()

    def prepare(self, canvas: Canvas) -> Canvas:
        """What the rule wants written before the first pass; most rules want nothing."""
        return canvas

    @abstractmethod
    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        """Rows to commit. `canvas` is as this pass's own choices leave it; the loop asks again in
        the next pass where a cache or a rule kept this one from reading every mask.
        """


@dataclass(frozen=True)
class Never(CommitRule):
    """No early commit."""

    name: ClassVar[str] = "never"
    cost_summary: ClassVar[str] = "nothing"
    source: ClassVar[str] = "the plain loops of LLaDA and Dream"

    traits = CommitTraits(reads_answer=False, capturable=True)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        return torch.zeros_like(canvas.horizon, dtype=torch.bool)


@dataclass(frozen=True)
class GapRule(CommitRule):
    """Ready when the lead of the best token over the second, averaged over a span, reaches a bar.

    The bar falls with progress: the share of a row's slots that passes have filled once this one has
    written its own choices. The peers count step / steps, which is the same number where every pass
    fills an equal share, and the only one that means anything once lengths vary.

    `measure="gap"` takes the lead in raw logits (log-odds, unbounded: one very sure column can
    carry the others, and guidance stretches it); `measure="margin"` takes it in probabilities, as
    the sampling judges them, against tanh(bar / 2), which is the same lead if no third token has a
    chance. Columns already filled count; columns a cache kept from this pass do not.
    """

    measure: str = "gap"

    def __post_init__(self) -> None:
        check_choice(type(self).__name__, "measure", self.measure, "gap", "margin")

    @abstractmethod
    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        """The columns whose lead is averaged."""

    @abstractmethod
    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """The lead asked for, in logits."""

    def literal_count(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Written slots of each row that are no work done, as long as this window is open."""
        return torch.zeros_like(canvas.horizon)

    def mean_lead(self, prediction: Prediction, canvas: Canvas) -> Float[Tensor, "B"]:
        """The mean lead over the span, -inf where this pass read none of it."""
        span = prediction.columns.gather(self.span(canvas))
        lead = prediction.gap if self.measure == "gap" else prediction.margin
        total = lead.masked_fill(~span, 0).sum(-1) / span.sum(-1).clamp(min=1)
        return total.masked_fill(~span.any(-1), -torch.inf)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        slots = canvas.fillable.sum(-1)
        filled = slots - canvas.masked.sum(-1) - self.literal_count(canvas, clock)
        bar = self.threshold(filled.double() / slots)
        if self.measure == "margin":
            bar = torch.tanh(bar / 2)
        return self.mean_lead(prediction, canvas) >= bar


@dataclass(frozen=True)
class Prophet(GapRule):
    """Fill everything when the answer's few columns lead by 7.5 logits, later by 5, late by 2.5.

    Prophet (2025, arXiv 2508.19982). Costs the vocabulary head on the whole answer, no
    pass. The answer region is `region` slots from `answer_start`; a negative `answer_start` counts
    from the end of the row's own canvas, so that the region follows a predicted length. Released code
    takes an absolute offset, as 0 and above do here; the region is clipped to the canvas, and a row
    too short to have one is never committed. Up to `early_until` of the work `early` is asked for, up
    to `middle_until` `middle`, then `late`.

    `literals` are token ids written before decoding, as (slot, id) pairs, slots counted like
    `answer_start` ("The answer is" in the paper's runs); they take no pass and are no progress. Released
    code tests before it picks the pass's tokens, with the same result, and writes the mask token where
    the model proposes it; ours writes the next best unless the sampling says otherwise.
    """

    name: ClassVar[str] = "prophet"
    cost_summary: ClassVar[str] = (
        "logits of the whole answer in every pass; saves the passes after the commit"
    )
    source: ClassVar[str] = "Prophet (2025, arXiv 2508.19982)"

    early_threshold: float = 7.5
    middle_threshold: float = 5.0
    late_threshold: float = 2.5
    early_until: float = 0.33
    middle_until: float = 0.67
    answer_start: int = -5
    answer_length: int = 5
    literals: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("early_threshold", "middle_threshold", "late_threshold"):
            check_number("Prophet", name, getattr(self, name), minimum=0)
        check_number("Prophet", "early_until", self.early_until, minimum=0, maximum=1)
        check_number("Prophet", "middle_until", self.middle_until, minimum=self.early_until, maximum=1)
        check_int("Prophet", "answer_start", self.answer_start, minimum=-(2**31))
        check_int("Prophet", "answer_length", self.answer_length, minimum=1)
        object.__setattr__(self, "literals", _pairs(self.literals))

    @property
    def traits(self) -> CommitTraits:
        by_index = bool(self.literals) or self.answer_start >= 0
        return CommitTraits(uses_slot_indices=by_index, capturable=True)

    def prepare(self, canvas: Canvas) -> Canvas:
        for slot, token in self.literals:
            if not 0 <= token < canvas.ids.vocab_size or token == canvas.ids.mask:
                raise SettingError(
                    f"Prophet has the literal id {token}; it must be one of the model's "
                    f"{canvas.ids.vocab_size} ids and not the mask"
                )
            index, slots = _slots(slot, canvas), canvas.fillable.sum(-1)
            outside = ((index < 0) | (index >= slots)).nonzero()[:, 0].tolist()
            if outside:
                raise SettingError(
                    f"Prophet has a literal at slot {slot}, but the canvas of prompt {outside[0]} has "
                    f"{int(slots[outside[0]])} slots; plan a longer one, or count the slot from "
                    "the end (a negative number)"
                )
            column = torch.arange(canvas.width) == (canvas.start + index)[:, None]
            canvas = canvas.write(column, torch.full_like(canvas.tokens, token))
        if not bool(canvas.masked.any(-1).all()):
            raise SettingError("Prophet's literals fill a whole canvas; leave some slots to decode")
        return canvas

    def literal_count(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Literals of this window and behind it: passes of earlier windows were spent on theirs, too."""
        count = torch.zeros_like(canvas.horizon)
        for slot, _ in self.literals:
            index = _slots(slot, canvas)
            ahead = canvas.start + index >= clock.window.first
            count = count + (ahead & (index < canvas.fillable.sum(-1)))
        return count

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        first = canvas.start + _slots(self.answer_start, canvas).clamp(min=0)
        return Window(first, first + self.answer_length).columns(canvas.width) & canvas.fillable

    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        later = torch.where(progress < self.middle_until, self.middle_threshold, self.late_threshold)
        return torch.where(progress < self.early_until, self.early_threshold, later)


def _slots(slot: int, canvas: Canvas) -> Int[Tensor, "B"]:
    """A slot of each row; a negative one counts from the end of what the model writes."""
    slots = canvas.fillable.sum(-1)
    return slots + slot if slot < 0 else torch.full_like(slots, slot)


def _pairs(given: object) -> tuple[tuple[int, int], ...]:
    """Pairs as JSON or a caller writes them, as a tuple that compares and hashes."""
    wanted = "pairs of a slot and a token id, such as ((-8, 21), (-7, 56))"
    check_list("Prophet", "literals", given, wanted)
    try:
        pairs = tuple((slot, token) for slot, token in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as wrong:
        raise WrongTypeError(
            f"Prophet(literals={short_repr(given)}) was given; literals must be {wanted}"
        ) from wrong
    for slot, token in pairs:
        check_int("Prophet", "slot", slot, minimum=-(2**31))
        check_int("Prophet", "id", token, minimum=0)
    if len({slot for slot, _ in pairs}) < len(pairs):
        raise SettingError(f"Prophet(literals={short_repr(given)}) names a slot twice; give each one id")
    return pairs


@dataclass(frozen=True)
class StableMargin(GapRule):
    """Fill everything when the lead, averaged over the whole answer, reaches a bar that falls.

    For free-form text, where no few columns are the answer. After SchED (arXiv 2512.02892), of which we
    know the abstract only: margins over the full span, a smooth threshold that falls with progress, no
    training. Everything else is ours, and no number of theirs should be expected: the plain mean over
    all slots, filled ones included; the straight line from `start` to `end`; progress as the share of
    slots filled; Prophet's 7.5 and 2.5 as its two ends. Costs the vocabulary head on the whole
    answer, no pass.
    """

    name: ClassVar[str] = "stable-margin"
    cost_summary: ClassVar[str] = (
        "logits of the whole answer in every pass; saves the passes after the commit"
    )
    source: ClassVar[str] = "after the abstract of SchED (arXiv 2512.02892)"

    start_threshold: float = 7.5
    end_threshold: float = 2.5

    traits = CommitTraits(capturable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("StableMargin", "end_threshold", self.end_threshold, minimum=0)
        check_number("StableMargin", "start_threshold", self.start_threshold, minimum=0)
        if self.start_threshold < self.end_threshold:
            raise SettingError(
                f"StableMargin(start_threshold={self.start_threshold!r}, "
                f"end_threshold={self.end_threshold!r}) was given; the threshold falls, so start_threshold "
                "must not be below end_threshold"
            )

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        return canvas.fillable

    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return self.start_threshold + (self.end_threshold - self.start_threshold) * progress
