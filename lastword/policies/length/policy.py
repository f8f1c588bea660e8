"""The contract of length policies: plan the length of an answer and revise it during decoding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from jaxtyping import Bool, Int
from torch import Size, Tensor, cat, device, long, maximum, minimum

from lastword.calibration import Calibration
from lastword.canvas.canvas import Canvas, Clock, State, tree_map
from lastword.canvas.contracts import (
    check_canvas,
    check_returned,
    check_state,
    check_unchanged,
    name_of,
    result_and_state,
    version_of,
)
from lastword.canvas.tokens import PromptIds, TokenIds, check_tensor
from lastword.decoding.forward import BatchCost
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.survival.distribution import LengthDistribution
from lastword.validation import MAX_COUNT, MAX_SLOTS, Part, check_choice, check_int, checked_field, short_repr

RESERVED_QUANTILE = 0.9
Resizes = Literal["never", "between blocks", "any time"]  # from rarest to most often
Reads = Literal["masks", "answer", "ahead", "one step"]  # from least to most


@dataclass(frozen=True)
class LengthTraits:
    """The properties of a length policy on which other parts depend; a wrapped policy has its own."""

    # When `revise` changes a row's length. "Between blocks" is after the step that completes the row's block, where
    # caches start anew, or after the step that ends the row.
    resizes: Resizes = checked_field("never", check_choice, *get_args(Resizes))
    # What `revise` reads of a pass: "masks", the open masks; "answer", the whole answer if the pass has its logits;
    # "ahead", the slots after a block in the pass that completes the block; "one step", the whole answer in one step.
    reads: Reads = checked_field("masks", check_choice, *get_args(Reads))
    grows: bool = False  # whether `revise` may make a row longer
    replans: bool = False  # whether `revise` computes the length anew, so that a wrapper may change it too
    uses_confidence: bool = False  # whether it depends on the model's confidence in the remaining masks
    bounds_cost: bool = False  # whether it guarantees that decoding costs no more than planned
    needs_blocks: bool = False  # whether it has little effect if the whole answer is one block
    min_slots: int = checked_field(1, check_int, minimum=1)  # the fewest slots that it plans
    # The most slots that it plans or grows to; None: unknown.
    max_slots: int | None = checked_field(None, check_int, minimum=1)
    # Whether `revise` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False

    @property
    def upper_bound(self) -> int:
        """The largest number of slots that the traits allow for: `max_slots`, but at least `min_slots`."""
        return max(self.min_slots, self.max_slots or 0)

    def with_inner(self, inner: LengthTraits) -> LengthTraits:
        """Return the traits of this policy wrapped around a policy with the traits `inner`."""
        limits = [traits.max_slots for traits in (self, inner) if traits.max_slots is not None]
        return LengthTraits(
            max(self.resizes, inner.resizes, key=get_args(Resizes).index),
            max(self.reads, inner.reads, key=get_args(Reads).index),
            self.grows or inner.grows,
            self.replans or inner.replans,
            self.uses_confidence or inner.uses_confidence,
            self.bounds_cost or inner.bounds_cost,
            self.needs_blocks or inner.needs_blocks,
            max(self.min_slots, inner.min_slots),
            max(limits, default=None),
            self.capturable and inner.capturable,
        )


@runtime_checkable
class Probe(Protocol):
    """A function that runs one forward pass over each prompt and `slots` masks, and counts its cost.

    Rows may have different numbers of slots. With `rows`, only those rows participate and are charged; the prediction
    is undefined for all other rows.
    """

    num_rows: int  # the number of prompts

    @property
    def cost(self) -> BatchCost:
        """The cost of all probe passes so far."""

    def max_cost(self, slots: Int[Tensor, "B"]) -> BatchCost:
        """Return an upper bound on the cost of decoding canvases of `slots` slots, whatever the model predicts."""

    def __call__(self, slots: int | Int[Tensor, "B"], rows: Bool[Tensor, "B"] | None = None) -> Prediction: ...


@dataclass(frozen=True, eq=False)
class Plan:
    """The planned number of slots of each row, and the state that the policy needs in `revise`."""

    horizon: Int[Tensor, "B"]
    lengths: LengthDistribution | None = None  # the distributions that the plan is based on, if any
    state: State = ()  # the policy's state before its first `revise`
    end_suffix: Int[Tensor, "B"] | None = None  # number of end tokens to write after each row's slots
    max_new_tokens: Int[Tensor, "B"] | None = None  # a cap on the slots of each row, also when it grows

    @property
    def max_horizon(self) -> int:
        """The largest horizon of any row."""
        return int(self.horizon.max())

    @cached_property
    def reserved_slots(self) -> int:
        """The number of slots for which memory is reserved: the horizon, or the 0.9 quantile of the length if more."""
        slots = self.horizon
        if self.lengths is not None:
            slots = maximum(slots, self.lengths.quantile(RESERVED_QUANTILE))
        return int((slots if self.max_new_tokens is None else minimum(slots, self.max_new_tokens)).max())

    def row(self, index: int) -> Plan:
        """Return the plan of one row."""
        lengths = None if self.lengths is None else self.lengths.row(index)
        bare = replace(self, lengths=None)
        return replace(tree_map(lambda rows: rows[index : index + 1], bare), lengths=lengths)

    @classmethod
    def concat(cls, plans: Sequence[Plan]) -> Plan:
        """Return the plans of several rows as one, without their length distributions."""
        bare = [replace(plan, lengths=None) for plan in plans]
        return tree_map(lambda *rows: cat(rows), *bare) if len(bare) > 1 else bare[0]

    def capped(self, max_new_tokens: Int[Tensor, "B"]) -> Plan:
        """Return the plan limited to `max_new_tokens` slots per row, even where the policy lengthens a row later."""
        cap = max_new_tokens if self.max_new_tokens is None else minimum(self.max_new_tokens, max_new_tokens)
        return replace(self, horizon=minimum(self.horizon, max_new_tokens), max_new_tokens=cap)

    def canvas(self, prompts: Sequence[PromptIds], ids: TokenIds, start: int | None = None) -> Canvas:
        """Return the planned canvas; answers begin at column `start` or after the longest prompt."""
        canvas = Canvas.blank(prompts, self.horizon, ids, start)
        return canvas if self.end_suffix is None else canvas.append_suffix(ids.end, self.end_suffix)


class ModelLimits(NamedTuple):
    """The properties of a model from which a policy fills in its unset fields."""

    max_new_tokens: int  # the value of limits that are not set
    available_slots: int | None = None  # a cap on all limits, also on those that are set
    calibration: Calibration | None = None

    def resolve(self, slots: int | None) -> int:
        """Return `slots`, or the model's limit if it is None; at most `available_slots`."""
        slots = self.max_new_tokens if slots is None else slots
        return slots if self.available_slots is None else min(slots, self.available_slots)


def resolved_slots(policy: object, value: int | None) -> int:
    """Return the value of a field that `LengthPolicy.resolved` sets; raise SettingError if it is unset."""
    if value is None:
        raise SettingError(
            f"{policy!r} was used before it was resolved for a model: decode with it in a Recipe, or give it a number "
            "of slots"
        )
    return value


class LengthPolicy(Part):
    """A policy that plans the length of each answer before the first step and may revise it after every step.

    A policy receives a probe instead of the model, so every forward pass of planning is counted.
    """

    @property
    def traits(self) -> LengthTraits:
        """The traits of the policy alone; `wrappers.combined_traits` adds those of wrapped policies."""
        return LengthTraits()

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        """Return the policy with its unset fields filled in for a model; by default the policy itself."""
        return self

    @abstractmethod
    def plan(self, probe: Probe) -> Plan:
        """Return the plan of the prompts that `probe` holds, before their first step."""

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        """Return the canvas and the state after a step; by default both are unchanged.

        This method must not have side effects: it is also called to find out whether the policy would lengthen a row
        that a commit rule is about to complete.
        """
        return canvas, state


def plan_with(policy: LengthPolicy, probe: Probe) -> Plan:
    """Return the checked result of `policy.plan`."""
    plan, owner, rows = policy.plan(probe), name_of(policy, "plan"), probe.num_rows
    check_returned(owner, plan, Plan, "a lastword.Plan")
    bounds = {"horizon": (1, MAX_SLOTS), "end_suffix": (0, MAX_SLOTS), "max_new_tokens": (1, MAX_COUNT)}
    for name, (low, high) in bounds.items():
        values = getattr(plan, name)
        if values is None and name != "horizon":
            continue
        check_tensor(f"{owner} returned {name}", values, Size((rows,)), long, device("cpu"))
        if not low <= int(values.min()) <= int(values.max()) <= high:
            raise SettingError(f"{owner} returned {name}={short_repr(values)}; give {low} to {high} for each prompt")
    total = plan.horizon if plan.end_suffix is None else plan.horizon + plan.end_suffix
    cap = MAX_SLOTS if plan.max_new_tokens is None else plan.max_new_tokens.clamp(max=MAX_SLOTS)
    if bool((total > cap).any()):
        raise SettingError(
            f"{owner} returned a horizon of {int(total.max())} slots, its suffix included; that is more than "
            f"{MAX_SLOTS} or its own max_new_tokens: plan fewer slots"
        )
    if plan.lengths is not None:
        check_returned(f"{owner}, as lengths,", plan.lengths, LengthDistribution, "a LengthDistribution, or None")
        if plan.lengths.hazard.shape[:-1] != (rows,):
            raise SettingError(f"{owner} returned lengths of {plan.lengths!r}; give one row for each of {rows} prompts")
    check_state(owner, plan.state, rows)
    return plan


def revise_with(
    policy: LengthPolicy, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
) -> tuple[Canvas, State]:
    """Return the checked result of `policy.revise`."""
    owner, version = name_of(policy, "revise"), version_of(canvas.tokens)
    revised, after = result_and_state(owner, policy.revise(canvas, prediction, clock, state), state)
    check_unchanged(owner, canvas.tokens, version)
    return check_canvas(owner, revised, canvas, may_resize=True), after


def resolve_with(policy: LengthPolicy, limits: ModelLimits) -> LengthPolicy:
    """Return the checked result of `policy.resolved`."""
    resolved = policy.resolved(limits)
    check_returned(name_of(policy, "resolved"), resolved, LengthPolicy, "a length policy")
    return resolved


class BoundedPolicy(LengthPolicy):
    """The base class of policies that start with `initial` slots and never exceed `limit`."""

    initial: int | None
    limit: int | None
    default_initial: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial is not None and self.limit is not None and self.initial > self.limit:
            raise SettingError(
                f"{type(self).__name__}(initial={self.initial}, limit={self.limit}) was given; initial must not "
                "exceed limit: raise the limit or start with fewer slots"
            )

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        limit = limits.resolve(self.limit)
        initial = min(self.default_initial, limit) if self.initial is None else limits.resolve(self.initial)
        limit = max(limit, initial) if self.limit is None else limit
        return replace(self, initial=initial, limit=limit)  # type: ignore[type-var]  # subclasses are dataclasses
