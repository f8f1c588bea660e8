"""The contract of length policies: plan a length, revise it during decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Int
from torch import Tensor, cat, long, maximum, minimum

from lastword.calibration import Calibration
from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.cost import BatchCost
from lastword.canvas.tokens import PromptIds, TokenIds
from lastword.canvas.tree import State, tree_map
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError, WrongTypeError
from lastword.survival.distribution import LengthDistribution
from lastword.validation import MAX_SLOTS, check_int, short_repr


def check_optional_slots(owner: str, name: str, value: int | None) -> None:
    """None, which leaves it to the model, or a whole number, 1 or more."""
    if value is not None:
        check_int(owner, name, value, minimum=1)


def resolved_slots(policy: object, value: int | None) -> int:
    """A number that settling has filled in by now."""
    if value is None:
        raise SettingError(
            f"{policy!r} was asked for a plan before it was settled for a model: decode with it in a Recipe, "
            "or give it a number of slots"
        )
    return value


Resizes = Literal["never", "between blocks", "any time"]
Reads = Literal["masks", "answer", "ahead", "one step"]
_SELDOM_TO_OFTEN: tuple[Resizes, ...] = ("never", "between blocks", "any time")
_LITTLE_TO_MUCH: tuple[Reads, ...] = ("masks", "answer", "ahead", "one step")


@dataclass(frozen=True)
class LengthTraits:
    """What a policy, without the one it wraps, says of itself: what other parts have to be ready for."""

    # When `revise` changes a row's length. Between blocks is after the step that completes the row's block,
    # where caches start anew anyhow, or the one that ends the row.
    resizes: Resizes = "never"
    # What `revise` reads of a pass: the open masks; the whole answer, where the pass can read it; the
    # slots ahead of a block, in the pass that completes it; the whole answer in one certain step.
    reads: Reads = "masks"
    grows: bool = False  # may `revise` make a row longer?
    # Does it set the length anew each time, so that others may have their own say?
    replans: bool = False
    uses_confidence: bool = False  # does it go by how sure the model is of what it left?
    bounds_cost: bool = False  # does it promise that decoding costs no more than it planned?
    needs_blocks: bool = False  # does it change little where the whole answer is one block?
    min_slots: int = 1  # slots it plans at least
    max_slots: int | None = None  # slots it plans or grows to at most; None: it does not say
    # Whether `revise` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False

    @property
    def upper_bound(self) -> int:
        """The most slots it asks for, as far as it says."""
        return max(self.min_slots, self.max_slots or 0)

    def with_inner(self, inner: LengthTraits) -> LengthTraits:
        """What holds for a policy and the one it wraps, at work on one canvas."""
        return LengthTraits(
            max(self.resizes, inner.resizes, key=_SELDOM_TO_OFTEN.index),
            max(self.reads, inner.reads, key=_LITTLE_TO_MUCH.index),
            self.grows or inner.grows,
            self.replans or inner.replans,
            self.uses_confidence or inner.uses_confidence,
            self.bounds_cost or inner.bounds_cost,
            self.needs_blocks or inner.needs_blocks,
            max(self.min_slots, inner.min_slots),
            max((t.max_slots for t in (self, inner) if t.max_slots is not None), default=None),
            self.capturable and inner.capturable,
        )


@runtime_checkable
class Probe(Protocol):
    """One forward pass over each prompt and `slots` masks; every call is counted in the cost.

    Rows may have canvases of different sizes. With `asking`, only those rows take part and pay; the
    prediction says nothing of the others.
    """

    num_rows: int  # the number of prompts

    @property
    def cost(self) -> BatchCost:
        """What the calls have cost so far."""

    def max_cost(self, slots: Int[Tensor, "B"]) -> BatchCost:
        """What decoding canvases of so many slots costs at most, whatever the model says."""

    def __call__(
        self, slots: int | Int[Tensor, "B"], rows: Bool[Tensor, "B"] | None = None
    ) -> Prediction: ...


@dataclass(frozen=True, eq=False)
class Plan:
    """How many slots each row gets, and what the policy will need to revise that."""

    horizon: Int[Tensor, "B"]
    lengths: LengthDistribution | None = None  # what says so, if a distribution was read
    state: State = ()  # of the policy, before its first `revise`
    # End tokens to write behind each row's slots, as its suffix
    end_suffix: Int[Tensor, "B"] | None = None
    max_new_tokens: Int[Tensor, "B"] | None = None  # slots no row may exceed, whoever lets it grow

    @property
    def max_horizon(self) -> int:
        """The most slots of a row."""
        return int(self.horizon.max())

    def reserved(self, share: float) -> int:
        """The most slots of a row, or as many more as this share of such answers does not exceed."""
        slots = self.horizon
        if self.lengths is not None:
            slots = maximum(slots, self.lengths.quantile(share))
        return int((slots if self.max_new_tokens is None else minimum(slots, self.max_new_tokens)).max())

    def row(self, index: int) -> Plan:
        """The plan of one row."""
        lengths = None if self.lengths is None else self.lengths.row(index)
        bare = replace(self, lengths=None)
        return replace(tree_map(lambda rows: rows[index : index + 1], bare), lengths=lengths)

    @classmethod
    def concat(cls, plans: Sequence[Plan]) -> Plan:
        """The plans of some rows as one; what a distribution said of each row stays with its own plan."""
        bare = [replace(plan, lengths=None) for plan in plans]
        return tree_map(lambda *rows: cat(rows), *bare) if len(bare) > 1 else bare[0]

    def capped(self, max_new_tokens: Int[Tensor, "B"]) -> Plan:
        """The same with no row longer than this, now or later."""
        bound = (
            max_new_tokens if self.max_new_tokens is None else minimum(self.max_new_tokens, max_new_tokens)
        )
        return replace(self, horizon=minimum(self.horizon, max_new_tokens), max_new_tokens=bound)

    def canvas(self, prompts: Sequence[PromptIds], ids: TokenIds, start: int | None = None) -> Canvas:
        """The canvas the plan asks for; answers begin at column `start` or behind the longest prompt."""
        canvas = Canvas.blank(prompts, self.horizon, ids, start)
        return canvas if self.end_suffix is None else canvas.append_suffix(ids.end, self.end_suffix)


def check_plan(plan: object, policy: object, rows: int) -> Plan:
    """What a policy planned, held to what a canvas can be made of."""
    if not isinstance(plan, Plan):
        raise WrongTypeError(
            f"{type(policy).__name__} planned {short_repr(plan)}; `plan` returns a lastword.Plan"
        )
    for name in ("horizon", "end_suffix", "max_new_tokens"):
        given = getattr(plan, name)
        fits = isinstance(given, Tensor) and (given.shape, given.dtype) == ((rows,), long)
        if not fits and (given is not None or name == "horizon"):
            raise WrongTypeError(
                f"{type(policy).__name__} planned {name}={short_repr(given)}; it must be a tensor of "
                f"{rows} whole "
                "numbers (torch.int64), one for each prompt"
            )
    if int(plan.horizon.max()) > MAX_SLOTS:
        raise SettingError(
            f"{type(policy).__name__} planned {int(plan.horizon.max())} slots; at most {MAX_SLOTS} can be"
        )
    return plan


class ModelLimits(NamedTuple):
    """What a policy is settled on: a model's slots and calibration, and perhaps less room than was said."""

    max_new_tokens: int  # where a policy does not say
    available_slots: int | None = None  # evaluation shortens what was said; decoding keeps it
    calibration: Calibration | None = None

    def resolve(self, slots: int | None) -> int:
        """A number of slots, as it was said or left unsaid."""
        slots = self.max_new_tokens if slots is None else slots
        return slots if self.available_slots is None else min(slots, self.available_slots)


class LengthPolicy(ABC):
    """How long the answer gets. It is handed a probe, never a model: its cost is its calls."""

    @property
    def traits(self) -> LengthTraits:
        """What the policy itself says, without the one it wraps: `wrapper.traits_of` adds them up."""
        return LengthTraits()

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        """The policy with what was left unsaid filled in, for a model; most hold no such number."""
        return self

    @abstractmethod
    def plan(self, probe: Probe) -> Plan:
        """Decide before the first step."""

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        """The canvas and the state after a step; most policies change neither.

        It must be pure: the loop also asks it whether a row that could be committed would rather grow.
        """
        return canvas, state
