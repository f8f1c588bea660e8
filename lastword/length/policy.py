"""What a length policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Int
from torch import Tensor

from lastword.calibration.ratios import Calibration
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost
from lastword.canvas.ids import TokenIds
from lastword.passes.prediction import Prediction
from lastword.survival import LengthDistribution

Resizes = Literal["never", "between blocks", "any time"]
_SELDOM_TO_OFTEN: tuple[Resizes, ...] = ("never", "between blocks", "any time")


@runtime_checkable
class Probe(Protocol):
    """One forward pass over each prompt and `slots` masks; every call is counted in the cost.

    Rows may have canvases of different sizes. With `asking`, only those rows take part and pay; the
    prediction says nothing of the others.
    """

    rows: int  # how many prompts are being planned for

    @property
    def cost(self) -> Cost:
        """What the calls have cost so far."""

    def most(self, slots: Int[Tensor, "B"]) -> Cost:
        """What decoding canvases of so many slots costs at most, whatever the model says."""

    def __call__(
        self, slots: int | Int[Tensor, "B"], asking: Bool[Tensor, "B"] | None = None
    ) -> Prediction: ...

    def reserve(self, slots: int) -> None:
        """Refuse at once, not in the middle of an answer, if so many slots do not fit the model."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How many slots each row gets, and the distribution that says so, if one was read.

    `closing` is a number of end tokens to write behind each row's slots before the first pass;
    `most_slots` is a number of slots no row may exceed, whoever lets it grow.
    """

    horizon: Int[Tensor, "B"]
    lengths: LengthDistribution | None = None
    closing: Int[Tensor, "B"] | None = None
    most_slots: Int[Tensor, "B"] | None = None

    def canvas(self, prompts: Sequence[Sequence[int]], ids: TokenIds) -> Canvas:
        """The canvas the plan asks for."""
        canvas = Canvas.blank(prompts, self.horizon, ids)
        canvas = replace(canvas, lengths=self.lengths, most_slots=self.most_slots)
        return canvas if self.closing is None else canvas.close(self.closing)


class LengthPolicy(ABC):
    """How long the answer gets. It is handed a probe, never a model: its cost is its calls."""

    @property
    def reads_answer(self) -> bool:
        """Does `revise` need logits of the whole answer, or do the open masks do?

        Where a pass cannot read that much, the policy leaves the row as it is.
        """
        return False

    @property
    def resizes(self) -> Resizes:
        """When `revise` may change a row's length: what a cache has to be ready for.

        Between blocks is after the pass that completes the row's block, where caches start anew
        anyhow.
        """
        return "never"

    @property
    def grows(self) -> bool:
        """May `revise` itself, not a policy it wraps, make a row longer?"""
        return False

    @property
    def grows_to(self) -> int | None:
        """The most slots a row grows to by it, where that is a number."""
        return None

    @property
    def plans_at_least(self) -> int:
        """The fewest slots it plans for any prompt."""
        return 1

    @property
    def bounds_work(self) -> bool:
        """Does it promise that decoding costs no more than it planned?"""
        return False

    @property
    def replans(self) -> bool:
        """Does it set the length anew each time, so that a policy around it may well have its own say?"""
        return False

    @property
    def goes_by_confidence(self) -> bool:
        """Does `revise` go by how sure the model is of what it left and of the end it sees?"""
        return False

    @property
    def reads_ahead(self) -> bool:
        """Must the pass that completes a block read what lies behind it?"""
        return False

    @property
    def needs_blocks(self) -> bool:
        """Does it change nothing where the whole answer is one block?"""
        return False

    @property
    def reads_step(self) -> int | None:
        """The one step whose pass it must read in full; None: any later pass will do as well."""
        return None

    @property
    def inner(self) -> LengthPolicy | None:
        """The policy it wraps and asks."""
        return None

    def layers(self) -> Iterator[LengthPolicy]:
        """This policy and those it wraps, from the outside in."""
        yield self
        if self.inner is not None:
            yield from self.inner.layers()

    def releases(
        self, ready: Bool[Tensor, "B"], canvas: Canvas, prediction: Prediction, clock: Clock
    ) -> Bool[Tensor, "B"]:
        """Of the rows that could be committed now, those that this pass does not lengthen.

        A row that asks for room is not done, and once every mask is filled nobody would hear it ask.
        """
        if not ready.any():
            return ready
        return ready & (self.revise(canvas, prediction, clock).horizon <= canvas.horizon)

    def fitted(self, calibration: Calibration | None) -> LengthPolicy:
        """The policy for a model of which this is known; most need not know."""
        return self

    @abstractmethod
    def plan(self, probe: Probe) -> Plan:
        """Decide before the first pass."""

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock) -> Canvas:
        """Change the plan after a pass; most policies do not."""
        return canvas


def more_often(one: Resizes, other: Resizes) -> Resizes:
    """What holds for two policies at work on one canvas."""
    return max(one, other, key=_SELDOM_TO_OFTEN.index)
