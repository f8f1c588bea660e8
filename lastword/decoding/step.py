"""The decoding step: the state of a batch, and the function from one state to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State, tree_map, tree_where
from lastword.canvas.columns import Columns, cached_arange
from lastword.canvas.contracts import call_part
from lastword.decoding.forward import BatchCost, Forward, Hooks, PackedCapacity, PassInputs, StaticColumns
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.models.storage import CacheStorage
from lastword.policies.cache import DualCache, NoCache, create_storage
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import revise_with
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.policies.unmask.rule import choose, max_idle_steps, visible_columns
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS


class Phase(IntEnum):
    """The next pass that a row needs, or its error."""

    DONE = 0  # nothing: no mask is left
    IN_BLOCK = 1  # a pass inside its block
    BLOCK_START = 2  # the pass that starts its next block
    INVALID_LOGITS = 3  # an error to raise: logits of the row were NaN or infinite
    NO_CHOICE = 4  # an error to raise: the unmask rule chose no mask, so decoding would never end


@dataclass(frozen=True, eq=False)
class BatchState:
    """All tensors that a step reads and returns. Rows can be selected, replaced and ended between steps."""

    canvas: Canvas
    clock: Clock  # of the next step
    rule_state: State  # of the unmask rule
    length_state: State  # of the length policy
    max_new_tokens: Int[Tensor, "B"] | None  # a cap per row; None: no row is capped
    cost: BatchCost
    phase: Int[Tensor, "B"]  # numbers of Phase

    def with_rows(self, index: Int[Tensor, "A"], new: BatchState) -> BatchState:
        """Return the state with the rows at `index` replaced by `new`."""
        width = max(self.canvas.width, new.canvas.width)
        old, new = self.widened(width), new.widened(width)
        if (old.max_new_tokens is None) != (new.max_new_tokens is None):
            old, new = old._capped(), new._capped()
        return tree_map(lambda tensor, other: tensor.index_copy(0, index, other), old, new)

    def with_rows_ended(self, index: Int[Tensor, "A"]) -> BatchState:
        """Return the state with the unfinished rows at `index` ended: all their masks are abandoned."""
        canvas = replace(self.canvas, abandoned=self.canvas.abandoned.index_fill(0, index, True))
        return replace(self, canvas=canvas, phase=self.phase.index_fill(0, index, int(Phase.DONE)))

    def widened(self, width: int) -> BatchState:
        """Return the state with its canvas padded on the right to `width` columns."""
        if self.canvas.width == width:
            return self
        return replace(self, canvas=self.canvas.widened(width))

    def _capped(self) -> BatchState:
        if self.max_new_tokens is not None:
            return self
        return replace(self, max_new_tokens=torch.full_like(self.canvas.horizon, MAX_SLOTS))


def phase_of(canvas: Canvas, clock: Clock, fault: Int[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
    """Return the phase of every row from the clock of the next step; `fault` holds error phases, or 0."""
    phase = (1 + clock.block_start.long()) * canvas.masked.any(-1)
    return phase if fault is None else torch.where(fault > 0, fault, phase)


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
        """Return a layout for the longest answer of the recipe, and one more block that a pass may read."""
        start = _next_power_of_two(max_prompt_tokens)
        return cls(start, start + _next_power_of_two((max_slots(recipe) or 0) + (recipe.block or 0)))


def check_max_slots(canvas: Canvas, recipe: Recipe) -> None:
    """Raise SettingError if a length policy gave a row more slots than its traits declare."""
    limit = max_slots(recipe)
    if limit is not None and int((canvas.horizon - canvas.suffix).max()) > limit:
        raise limit_exceeded_error(recipe)


def supports_static_shapes(
    device: torch.device, recipe: Recipe, hooks: Hooks, max_batch_size: int, *, packs_rows: bool = False
) -> bool:
    """Return whether the passes of a recipe can have static shapes.

    A pass must compute only the block (dual cache), one whole row, or whole rows that the model packs; it must
    read only masks of the block; and no row may be resized inside a block. Hooks may run any code, and sampling
    draws row by row from generators, which needs the host, so both exclude static shapes.
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
    """Return whether every part of a recipe is declared capturable by its traits."""
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
    """Return the most slots that a row may ever have; None if the length policy declares no limit."""
    length, (*_, planner) = combined_traits(recipe.length), policy_layers(recipe.length)
    if length.max_slots is None and isinstance(planner, Fixed) and not length.grows:
        return planner.slots
    return None if length.max_slots is None else length.upper_bound


def _next_power_of_two(columns: int) -> int:
    return max(MIN_COLUMNS, 1 << (columns - 1).bit_length())


@dataclass(frozen=True)
class PassShape:
    """The rows that participate in a forward pass, and the tensor shapes of the pass.

    A dynamic pass computes only the columns that are needed. A static pass has the same shapes whatever its rows
    hold and never waits for the device, so it can be captured as a CUDA graph. A static pass computes

    - with a cache: in every row, the columns of the row's block, or the columns `recompute`;
    - without a cache: the columns `row` of a single row, or all rows packed into a fixed capacity.
    """

    phase: Phase | None = None  # only rows in this phase participate; None: every row that has masks
    static: bool = False
    recompute: range | None = None
    row: range | None = None  # the columns of a single row
    packed: PackedCapacity | None = None

    def active(self, phase: Int[Tensor, "B"]) -> Bool[Tensor, "B"] | None:
        """Return the rows that participate; None in a dynamic pass over all rows that have masks."""
        if self.phase is not None:
            return phase == self.phase
        return (phase == Phase.IN_BLOCK) | (phase == Phase.BLOCK_START) if self.static else None


DYNAMIC = PassShape()


class StepDetails(NamedTuple):
    """The prediction of a step and the masks that it filled."""

    chosen: Bool[Tensor, "B L"]  # masks of prediction.canvas that the rules chose to fill
    prediction: Prediction


class Stepper:
    """The step function of one recipe.

    Without hooks, a step depends only on the given state, the cache storage and the random generators.
    """

    def __init__(self, recipe: Recipe, forward: Forward, hooks: Hooks, storage: CacheStorage | None = None) -> None:
        self.recipe, self.storage = recipe, storage
        self._forward, self._hooks = forward, hooks
        self._step = 0
        self._max_idle: Tensor | None = None  # see max_idle_steps

    def __call__(self, state: BatchState, shape: PassShape = DYNAMIC) -> tuple[BatchState, StepDetails]:
        """Run one step, whose pass has the given shape; return the state after the step and its details.

        An error is stored in the phase of its row: in a static pass, raising it would need the host.
        """
        if shape.static:
            state = replace(state, canvas=replace(state.canvas, static=True))
        if self.storage is None:
            self.storage = create_storage(self.recipe.cache, state.canvas)
        active = shape.active(state.phase)
        window = state.canvas.masked & state.clock.window.columns(state.canvas.width)
        window = window if active is None else window & active[:, None]
        inputs = (self._static_inputs if shape.static else self._dynamic_inputs)(state, shape, window, active)
        prediction, cost = self._forward(state.canvas, inputs, state.cost, storage=self.storage, step=self._step)
        after, chosen = self._apply(state, window, prediction, cost, active)
        self._step += 1
        if shape.static:
            after = replace(after, canvas=replace(after.canvas, static=False))
        return after, StepDetails(chosen, prediction)

    def _dynamic_inputs(
        self, state: BatchState, shape: PassShape, window: Bool[Tensor, "B L"], active: Bool[Tensor, "B"] | None
    ) -> PassInputs:
        """Return the columns to read (open masks, and answer columns for policies) and those to compute."""
        recipe, canvas, clock = self.recipe, state.canvas, state.clock
        visible = visible_columns(recipe.unmask, canvas, clock, state.rule_state)
        answer = self._answer_to_read(canvas, clock)
        read = (window if answer is None else window | answer) & visible
        read = read if active is None else read & active[:, None]
        stale = self._stale(canvas, clock) & visible
        starts_filled = recipe.cache.traits.starts_filled
        if self._step == 0 and not starts_filled and bool((visible & ~stale).any()):
            raise SettingError(
                f"{type(recipe.cache).__name__}.stale left out columns of a row's first pass, of which nothing is "
                "stored; return all of them if clock.step is 0 (canvas.valid)"
            )
        return PassInputs(Columns.from_mask(read), visible, stale)

    def _stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return call_part(self.recipe.cache, "stale", canvas, clock, like=canvas.tokens, dtype=torch.bool)

    def _static_inputs(
        self, state: BatchState, shape: PassShape, window: Bool[Tensor, "B L"], active: Bool[Tensor, "B"] | None
    ) -> PassInputs:
        """Return the columns to read, equally many in every row, and those to compute."""
        canvas, block, row = state.canvas, self.recipe.block, shape.row
        first, last = state.clock.window.first, state.clock.window.last
        if shape.packed is not None:
            columns = Columns.from_window(first, block or shape.packed.slots, window)
            return PassInputs(columns, packed=shape.packed, active=active)
        if self.storage is None and row is not None:
            slots = row.stop - canvas.start
            count = min(block or slots, slots)
            # If the last block is shorter than the others, columns before it are read as well.
            return PassInputs(Columns.from_window(first.clamp(max=row.stop - count), count, window), row=row)
        if block is None:
            raise SettingError("a static pass with a cache needs a block size")
        columns = Columns.from_window(first, block, window)
        if shape.recompute is None:
            return PassInputs(columns, recompute=StaticColumns(columns.index, last - first), row=row)
        index = shape.recompute.start + cached_arange(len(shape.recompute), canvas.device)
        counts = canvas.horizon if row is None else canvas.horizon + canvas.prompt_length
        return PassInputs(columns, recompute=StaticColumns(index.expand(len(first), -1), counts), row=row)

    def _answer_to_read(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"] | None:
        """Return the answer columns that policies read in addition to the open masks; None: no more columns.

        With a cache that refreshes by block, a policy that may resize at any time reads the answer at block starts
        only: a resize inside a block would cost a full pass and make all stored columns outdated.
        """
        recipe = self.recipe
        cache, length = recipe.cache.traits, combined_traits(recipe.length)
        if length.reads == "masks" and not recipe.commit.traits.reads_answer:
            return None
        readable = canvas.valid if cache.covers_stored_columns else self._stale(canvas, clock)
        if cache.refreshes_by_block and length.resizes == "any time":
            readable = readable & clock.block_start[:, None]
        return canvas.unfinished & readable

    def _apply(
        self,
        state: BatchState,
        window: Bool[Tensor, "B L"],
        prediction: Prediction,
        cost: BatchCost,
        active: Bool[Tensor, "B"] | None,
    ) -> tuple[BatchState, Bool[Tensor, "B L"]]:
        """Fill the chosen masks, commit and resize rows; return the new state and the masks that were filled."""
        recipe, canvas, clock = self.recipe, state.canvas, state.clock
        columns, tokens = prediction.columns, prediction.tokens_on_canvas
        open_masks = columns.gather(window)
        chosen, rule_state = choose(recipe.unmask, prediction, open_masks, clock, state.rule_state)
        chosen = chosen & open_masks
        fault = self._faults(chosen, open_masks, clock, prediction)
        writes = columns.scatter(chosen)
        if recipe.commit.traits.reads_answer:
            filled = canvas.write(writes, tokens)
            ready = call_part(recipe.commit, "ready", prediction, filled, clock, like=canvas.horizon, dtype=torch.bool)
            ready = ready & prediction.covers_all(canvas.masked)
            ready = self._without_growing(ready, state, filled, prediction)
            writes = writes | (ready[:, None] & canvas.masked)
        canvas = canvas.write(writes, tokens)
        if recipe.sampling.propose_mask:
            canvas = canvas.abandon(window, writes)
        revised, length_state = revise_with(recipe.length, canvas, prediction, clock, state.length_state)
        if revised is not canvas and not canvas.static:
            check_max_slots(revised, recipe)
        canvas = revised if state.max_new_tokens is None else _capped(revised, canvas, state.max_new_tokens)
        canvas = self._hooks.after(self._step, canvas)
        if active is not None:
            if canvas.width != state.canvas.width:
                raise limit_exceeded_error(recipe)
            canvas = canvas.where(active, state.canvas)
            rule_state = tree_where(active, rule_state, state.rule_state)
            length_state = tree_where(active, length_state, state.length_state)
        clock = clock.tick(canvas, recipe.block, active)
        phase = phase_of(canvas, clock, fault)
        return BatchState(canvas, clock, rule_state, length_state, state.max_new_tokens, cost, phase), writes

    def _faults(
        self, chosen: Bool[Tensor, "B S"], open_masks: Bool[Tensor, "B S"], clock: Clock, prediction: Prediction
    ) -> Int[Tensor, "B"] | None:
        """Return the error phase of every row (0: no error), or None if no row has an error.

        A row has an error if the rule chose none of its open masks although its schedule allows no more idle passes.
        """
        canvas, idle = prediction.canvas, open_masks.any(-1) & ~chosen.any(-1)
        if not canvas.may_contain(idle):
            return None
        masks = open_masks.shape[1] if canvas.static else int(clock.masks_at_start.max())
        if self._max_idle is None or len(self._max_idle) <= masks:
            self._max_idle = max_idle_steps(self.recipe.unmask, masks, open_masks.device)
        allowed = self._max_idle[clock.masks_at_start.clamp(max=len(self._max_idle) - 1)]
        fault = (idle & (clock.in_window >= allowed)) * int(Phase.NO_CHOICE)
        if prediction.invalid_rows is not None:
            fault = torch.where(prediction.invalid_rows, int(Phase.INVALID_LOGITS), fault)
        return fault

    def _without_growing(
        self, ready: Bool[Tensor, "B"], state: BatchState, canvas: Canvas, prediction: Prediction
    ) -> Bool[Tensor, "B"]:
        """Return `ready` without the rows that the planning policy (the innermost length policy) would lengthen.

        A row that the policy would lengthen is not complete, but the policy is not called again after all masks are
        filled. Policies wrapped around the planning policy act between blocks, also on a committed row.
        """
        if not canvas.may_contain(ready):
            return ready
        *_, planner = policy_layers(self.recipe.length)
        revised, _ = revise_with(planner, canvas, prediction, state.clock, state.length_state)
        cap = state.max_new_tokens
        wanted = revised.horizon if cap is None else torch.minimum(revised.horizon, cap)
        return ready & (wanted <= canvas.horizon)


def _capped(revised: Canvas, before: Canvas, cap: Int[Tensor, "B"]) -> Canvas:
    """Return the revised canvas cropped to `cap`; a row that already has `cap` slots and would grow is unchanged.

    Otherwise a policy that inserts masks before written tokens would push tokens out of a full row without end.
    """
    is_full = (before.horizon >= cap) & (before.suffix == 0) & (revised.horizon > cap)
    if revised.may_contain(is_full):
        revised = revised.where(~is_full, before.widened(revised.width))
    return revised.crop(cap)
