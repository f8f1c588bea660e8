"""The layout of a canvas, and the condition for passes of static shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lastword.canvas.canvas import Canvas
from lastword.decoding.hooks import Hooks
from lastword.errors import SettingError
from lastword.policies.cache import DualCache, NoCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.wrapper import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe

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
