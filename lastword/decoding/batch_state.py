"""The state of the rows of a batch between two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State, tree_map
from lastword.decoding.forward import BatchCost, Hooks
from lastword.errors import SettingError, WrongTypeError
from lastword.policies.cache import DualCache, NoCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS


class Phase(IntEnum):
    """The next pass that a row needs, or its error."""

    DONE = 0  # nothing: no mask is left
    IN_BLOCK = 1  # a pass inside its block
    BLOCK_START = 2  # the pass that starts its next block
    INVALID_LOGITS = 3  # an error to raise: a pass gave no best token for the row
    NO_CHOICE = 4  # an error to raise: the unmask rule chose no mask and never would


@dataclass(frozen=True, eq=False)
class BatchState:
    """Everything a step reads and returns. Rows can be selected, replaced and ended between steps."""

    canvas: Canvas
    clock: Clock  # of the next step
    rule_state: State  # of the unmask rule
    length_state: State  # of the length policy
    max_new_tokens: Int[Tensor, "B"] | None  # a cap per row; None: no row is capped
    cost: BatchCost
    phase: Int[Tensor, "B"]  # as Phase

    def with_rows(self, index: Int[Tensor, "A"], new: BatchState) -> BatchState:
        """Return the state with the rows at `index` replaced by `new`."""
        width = max(self.canvas.width, new.canvas.width)
        old, new = self.widened(width), new.widened(width)
        if (old.max_new_tokens is None) != (new.max_new_tokens is None):
            old, new = old._capped(), new._capped()
        return tree_map(lambda tensor, other: tensor.index_copy(0, index, other), old, new)

    def with_rows_ended(self, index: Int[Tensor, "A"]) -> BatchState:
        """Return the state with the rows at `index` ended before they are finished."""
        canvas = replace(self.canvas, abandoned=self.canvas.abandoned.index_fill(0, index, True))
        return replace(self, canvas=canvas, phase=self.phase.index_fill(0, index, int(Phase.DONE)))

    def select(self, index: Int[Tensor, "A"]) -> BatchState:
        """Return the state of some rows."""
        return tree_map(lambda tensor: tensor.index_select(0, index), self)

    def widened(self, width: int) -> BatchState:
        """Return the state on a canvas of `width` columns."""
        if self.canvas.width == width:
            return self
        return replace(self, canvas=self.canvas.widened(width))

    def _capped(self) -> BatchState:
        if self.max_new_tokens is not None:
            return self
        return replace(self, max_new_tokens=torch.full_like(self.canvas.horizon, MAX_SLOTS))


def phase_of(canvas: Canvas, clock: Clock, fault: Int[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
    """Return the phase of every row, given the clock of the next step and the faults of a static pass."""
    phase = (1 + clock.block_start.long()) * canvas.masked.any(-1)
    return phase if fault is None else torch.where(fault > 0, fault, phase)


def check_canvas(returned: object, part: object) -> Canvas:
    """Return what a part returned if it is a canvas."""
    if not isinstance(returned, Canvas):
        raise WrongTypeError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `prepare` must return a canvas, "
            "and `revise` a canvas and a state"
        )
    return returned


# Devices where launching kernels and waiting for the device costs more than computing padding.
STATIC_DEVICES = {"cuda"}
MIN_COLUMNS = 256  # shorter prompts and answers share one layout


@dataclass(frozen=True)
class CanvasLayout:
    """The column where answers begin, and the number of columns (None: as many as the rows need)."""

    start: int
    width: int | None = None

    @classmethod
    def static(cls, recipe: Recipe, max_prompt_tokens: int) -> CanvasLayout:
        """Return a layout that fits whatever the recipe's rows may grow to, and one more block to read."""
        start = _next_power_of_two(max_prompt_tokens)
        return cls(start, start + _next_power_of_two((max_slots(recipe) or 0) + (recipe.block or 0)))

    def check(self, canvas: Canvas, recipe: Recipe) -> None:
        """Raise an error if a length policy gave a row more slots than its traits say."""
        if self.width is not None and self.start + int(canvas.horizon.max()) > self.width:
            raise limit_exceeded_error(recipe)


def supports_static_shapes(
    device: torch.device, recipe: Recipe, hooks: Hooks, max_batch_size: int, *, packs_rows: bool = False
) -> bool:
    """Return whether the passes of a recipe can have static shapes.

    A pass must compute the block alone (dual cache), a whole single row, or whole rows that the model packs;
    it must read the masks of the block only; and no row may be resized inside a block. Hooks may do anything,
    and sampled tokens are drawn row by row from generators on the host, so both exclude static shapes.
    """
    length = combined_traits(recipe.length)
    no_cache = isinstance(recipe.cache, NoCache) and (max_batch_size == 1 or packs_rows)
    dual_cache = isinstance(recipe.cache, DualCache) and recipe.block is not None
    return (
        device.type in STATIC_DEVICES
        and (no_cache or dual_cache)
        and length.reads == "masks"
        and length.resizes != "any time"
        and max_slots(recipe) is not None
        and not recipe.commit.traits.reads_answer
        and not recipe.unmask.traits.hides_columns
        and not recipe.sampling.guidance
        and not recipe.sampling.temperature
        and hooks == Hooks()
    )


def is_capturable(recipe: Recipe) -> bool:
    """Return whether every part declares that its passes can be captured as a CUDA graph."""
    declared = [policy.traits.capturable for policy in policy_layers(recipe.length)]
    others = (recipe.unmask.traits, recipe.commit.traits, recipe.cache.traits)
    return all(declared) and all(traits.capturable for traits in others)


def limit_exceeded_error(recipe: Recipe) -> SettingError:
    """Return the error for a length policy that exceeds its declared limit."""
    return SettingError(
        f"{type(recipe.length).__name__} gave a row more slots than the {max_slots(recipe)} that its traits "
        "allow; set LengthTraits(max_slots=...) to the most that it plans or grows to, or to None"
    )


def max_slots(recipe: Recipe) -> int | None:
    """Return the most slots that a row may ever have; None if its length policy does not say."""
    length, (*_, planner) = combined_traits(recipe.length), policy_layers(recipe.length)
    if length.max_slots is None and isinstance(planner, Fixed) and not length.grows:
        return planner.slots
    return None if length.max_slots is None else length.upper_bound


def _next_power_of_two(columns: int) -> int:
    return max(MIN_COLUMNS, 1 << (columns - 1).bit_length())
