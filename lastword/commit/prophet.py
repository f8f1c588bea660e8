"""Prophet: commit once the answer itself is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.window import Window
from lastword.checks import check_number, check_sequence, check_whole, shown
from lastword.commit.gap_rule import GapRule
from lastword.commit.rule import CommitTraits
from lastword.errors import SettingError, WrongTypeError


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
    price: ClassVar[str] = (
        "logits of the whole answer in every pass; saves the passes after the commit"
    )
    source: ClassVar[str] = "Prophet (2025, arXiv 2508.19982)"

    early: float = 7.5
    middle: float = 5.0
    late: float = 2.5
    early_until: float = 0.33
    middle_until: float = 0.67
    answer_start: int = -5
    region: int = 5
    literals: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("early", "middle", "late"):
            check_number("Prophet", name, getattr(self, name), least=0)
        check_number("Prophet", "early_until", self.early_until, least=0, most=1)
        check_number("Prophet", "middle_until", self.middle_until, least=self.early_until, most=1)
        check_whole("Prophet", "answer_start", self.answer_start, least=-(2**31))
        check_whole("Prophet", "region", self.region, least=1)
        object.__setattr__(self, "literals", _pairs(self.literals))

    @property
    def traits(self) -> CommitTraits:
        return CommitTraits(counts_slots=bool(self.literals) or self.answer_start >= 0)

    def prepare(self, canvas: Canvas) -> Canvas:
        for slot, token in self.literals:
            if not 0 <= token < canvas.ids.vocabulary or token == canvas.ids.mask:
                raise SettingError(
                    f"Prophet has the literal id {token}; it must be one of the model's "
                    f"{canvas.ids.vocabulary} ids and not the mask"
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

    def given(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Literals of this window and behind it: passes of earlier windows were spent on theirs, too."""
        count = torch.zeros_like(canvas.horizon)
        for slot, _ in self.literals:
            index = _slots(slot, canvas)
            ahead = canvas.start + index >= clock.window.first
            count = count + (ahead & (index < canvas.fillable.sum(-1)))
        return count

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        first = canvas.start + _slots(self.answer_start, canvas).clamp(min=0)
        return Window(first, first + self.region).columns(canvas.width) & canvas.fillable

    def bar(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        later = torch.where(progress < self.middle_until, self.middle, self.late)
        return torch.where(progress < self.early_until, self.early, later)


def _slots(slot: int, canvas: Canvas) -> Int[Tensor, "B"]:
    """A slot of each row; a negative one counts from the end of what the model writes."""
    slots = canvas.fillable.sum(-1)
    return slots + slot if slot < 0 else torch.full_like(slots, slot)


def _pairs(given: object) -> tuple[tuple[int, int], ...]:
    """Pairs as JSON or a caller writes them, as a tuple that compares and hashes."""
    wanted = "pairs of a slot and a token id, such as ((-8, 21), (-7, 56))"
    check_sequence("Prophet", "literals", given, wanted)
    try:
        pairs = tuple((slot, token) for slot, token in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as wrong:
        raise WrongTypeError(
            f"Prophet(literals={shown(given)}) was given; literals must be {wanted}"
        ) from wrong
    for slot, token in pairs:
        check_whole("Prophet", "slot", slot, least=-(2**31))
        check_whole("Prophet", "id", token, least=0)
    if len({slot for slot, _ in pairs}) < len(pairs):
        raise SettingError(f"Prophet(literals={shown(given)}) names a slot twice; give each one id")
    return pairs
