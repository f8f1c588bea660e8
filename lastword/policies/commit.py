"""Early-commit rules: when to fill all remaining masks of a row at once."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Window
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError, WrongTypeError
from lastword.validation import Part, check_choice, check_int, check_list, check_number, checked_field, short_repr


@dataclass(frozen=True)
class CommitTraits:
    """The properties of a commit rule on which other parts depend."""

    reads_answer: bool = True  # whether `ready` needs candidates for every mask of the answer
    uses_slot_indices: bool = False  # whether it names slots by index from the left, which insertions shift
    # Whether `ready` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False


class CommitRule(Part):
    """A rule that decides which rows fill all remaining masks at once."""

    @property
    def traits(self) -> CommitTraits:
        return CommitTraits()

    def prepare(self, canvas: Canvas) -> Canvas:
        """Return the canvas with the tokens that the rule writes before the first pass; by default none."""
        return canvas

    @abstractmethod
    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        """Return the rows to commit, given the canvas with the tokens that the unmask rule chose after this pass.

        A row is committed only if the pass has read all its masks; if a cache or an unmask rule prevented that, this
        method is called again after the next pass.
        """


@dataclass(frozen=True)
class Never(CommitRule):
    """Never commit early."""

    name = "never"
    cost_summary = "nothing"
    source = "LLaDA, Dream"
    traits = CommitTraits(reads_answer=False, capturable=True)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        return torch.zeros_like(canvas.horizon, dtype=torch.bool)


@dataclass(frozen=True)
class GapRule(CommitRule):
    """Commit a row when the lead of the best token over the second, averaged over a span, is large enough.

    The threshold falls with progress, the share of the row's slots that are filled after this pass. The reference code
    uses step / steps, which is the same if every pass fills an equal share, and undefined if lengths vary.

    `measure="gap"` is the lead in raw logits (log-odds; unbounded, so one certain column can outweigh all others, and
    guidance enlarges it). `measure="margin"` is the lead in probabilities, after sampling settings, compared with
    tanh(threshold / 2), which is equivalent if all probability is on two tokens. Filled columns are part of the
    average; columns that the pass took from a cache are not.
    """

    cost_summary = "logits of the whole answer"

    measure: str = checked_field("gap", check_choice, "gap", "margin")

    @abstractmethod
    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        """Return the columns whose lead is averaged."""

    @abstractmethod
    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """Return the required lead in logits for each row's progress, a share from 0 to 1."""

    def literal_count(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Return how many slots per row were filled before decoding and do not count as progress; by default 0."""
        return torch.zeros_like(canvas.horizon)

    def mean_lead(self, prediction: Prediction, canvas: Canvas) -> Float[Tensor, "B"]:
        """Return each row's mean lead over the span; -inf if this pass read no column of the span."""
        span = prediction.columns.gather(self.span(canvas))
        lead = prediction.gap if self.measure == "gap" else prediction.margin
        total = lead.masked_fill(~span, 0).sum(-1) / span.sum(-1).clamp(min=1)
        return total.masked_fill(~span.any(-1), -torch.inf)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        slots = canvas.fillable.sum(-1)
        filled = slots - canvas.masked.sum(-1) - self.literal_count(canvas, clock)
        threshold = self.threshold(filled.double() / slots)
        if self.measure == "margin":
            threshold = torch.tanh(threshold / 2)
        return self.mean_lead(prediction, canvas) >= threshold


@dataclass(frozen=True)
class Prophet(GapRule):
    """Commit when the best tokens of the final answer lead by a threshold, which falls in three steps.

    Prophet (2025, arXiv 2508.19982). Costs the output head on the whole answer, but no forward pass. The final answer
    is expected in `answer_length` slots from `answer_start`; a negative `answer_start` counts from the end of each row,
    so that this region moves with a predicted length. It is clipped to the canvas, and a row without a slot in it is
    never committed. `early_threshold` applies up to the progress `early_until`, `middle_threshold` up to
    `middle_until`, then `late_threshold`.

    `literals` are token ids written before decoding, as (slot, id) pairs with slots counted like `answer_start` ("The
    answer is" in the paper's runs); they take no pass and do not count as progress.

    The released code counts `answer_start` from the left only, and it writes the mask token where the model proposes
    it; here the next best token is written, unless `Sampling.propose_mask` is set. It applies the rule before it
    writes the tokens of the pass, with the same result.
    """

    name = "prophet"
    source = "Prophet (arXiv 2508.19982)"

    early_threshold: float = checked_field(7.5, check_number, minimum=0)
    middle_threshold: float = checked_field(5.0, check_number, minimum=0)
    late_threshold: float = checked_field(2.5, check_number, minimum=0)
    early_until: float = checked_field(0.33, check_number, minimum=0, maximum=1)
    middle_until: float = 0.67
    answer_start: int = checked_field(-5, check_int, minimum=-(2**31))
    answer_length: int = checked_field(5, check_int, minimum=1)
    literals: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Prophet", "middle_until", self.middle_until, minimum=self.early_until, maximum=1)
        object.__setattr__(self, "literals", _checked_literals(self.literals))

    @property
    def traits(self) -> CommitTraits:
        by_index = bool(self.literals) or self.answer_start >= 0
        return CommitTraits(uses_slot_indices=by_index, capturable=True)

    def prepare(self, canvas: Canvas) -> Canvas:
        for slot, token in self.literals:
            if not 0 <= token < canvas.ids.vocab_size or token == canvas.ids.mask:
                raise SettingError(
                    f"Prophet has the literal id {token}; it must be one of the model's {canvas.ids.vocab_size} ids "
                    "and not the mask"
                )
            index, slots = _slot_index(slot, canvas), canvas.fillable.sum(-1)
            outside = ((index < 0) | (index >= slots)).nonzero()[:, 0].tolist()
            if outside:
                raise SettingError(
                    f"Prophet has a literal at slot {slot}, but the canvas of prompt {outside[0]} has "
                    f"{int(slots[outside[0]])} slots; plan a longer one, or count the slot from the end (a negative "
                    "number)"
                )
            column = torch.arange(canvas.width) == (canvas.start + index)[:, None]
            canvas = canvas.write(column, torch.full_like(canvas.tokens, token))
        if not bool(canvas.masked.any(-1).all()):
            raise SettingError("Prophet's literals fill a whole canvas; leave some slots to decode")
        return canvas

    def literal_count(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Return how many preset tokens (`literals`) are not progress: those in the current or a later window."""
        count = torch.zeros_like(canvas.horizon)
        for slot, _ in self.literals:
            index = _slot_index(slot, canvas)
            ahead = canvas.start + index >= clock.window.first
            count = count + (ahead & (index < canvas.fillable.sum(-1)))
        return count

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        first = canvas.start + _slot_index(self.answer_start, canvas).clamp(min=0)
        return Window(first, first + self.answer_length).columns(canvas.width) & canvas.fillable

    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        later = torch.where(progress < self.middle_until, self.middle_threshold, self.late_threshold)
        return torch.where(progress < self.early_until, self.early_threshold, later)


def _slot_index(slot: int, canvas: Canvas) -> Int[Tensor, "B"]:
    """Return the index of a slot in each row; negative slots count from the end of the fillable slots."""
    slots = canvas.fillable.sum(-1)
    return slots + slot if slot < 0 else torch.full_like(slots, slot)


def _checked_literals(literals: object) -> tuple[tuple[int, int], ...]:
    """Check literals from JSON or a caller and return them as tuples, which can be compared and hashed."""
    expected = "pairs of a slot and a token id, such as ((-8, 21), (-7, 56))"
    check_list("Prophet", "literals", literals, expected)
    try:
        pairs = tuple((slot, token) for slot, token in literals)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise WrongTypeError(
            f"Prophet(literals={short_repr(literals)}) was given; literals must be {expected}"
        ) from error
    for slot, token in pairs:
        check_int("Prophet", "slot", slot, minimum=-(2**31))
        check_int("Prophet", "id", token, minimum=0)
    if len({slot for slot, _ in pairs}) < len(pairs):
        raise SettingError(f"Prophet(literals={short_repr(literals)}) names a slot twice; give each one id")
    return pairs


@dataclass(frozen=True)
class StableMargin(GapRule):
    """Commit when the best tokens of the whole answer lead by a threshold, which falls with progress.

    For free-form text, which has no short final answer. It follows the abstract of SchED (arXiv 2512.02892), the only
    part of the paper that was available: margins over the full span, a smooth threshold that falls with progress, no
    training. Two choices are ours and will not reproduce the paper's numbers: the plain mean over all slots, filled or
    not, and a line from `start_threshold` to `end_threshold`. Costs the output head on the whole answer, but no forward
    pass.
    """

    name = "stable-margin"
    source = "after the abstract of SchED (arXiv 2512.02892)"
    traits = CommitTraits(capturable=True)

    start_threshold: float = checked_field(7.5, check_number, minimum=0)
    end_threshold: float = checked_field(2.5, check_number, minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_threshold < self.end_threshold:
            raise SettingError(
                f"StableMargin(start_threshold={self.start_threshold!r}, end_threshold={self.end_threshold!r}) was "
                "given; the threshold falls, so start_threshold must not be below end_threshold"
            )

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        return canvas.fillable

    def threshold(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return self.start_threshold + (self.end_threshold - self.start_threshold) * progress
