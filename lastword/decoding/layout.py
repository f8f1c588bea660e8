"""Where answers begin on a canvas and how wide it is, so that passes of many calls share one shape."""

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

DEVICES = {"cuda"}  # where a pass costs what its shape says, and a question to the host costs more
MIN_COLUMNS = 256  # columns: what is shorter shares a layout


@dataclass(frozen=True)
class CanvasLayout:
    """The column where answers begin, and the columns there are; None: as many as the rows need."""

    start: int
    width: int | None = None

    @classmethod
    def of(cls, recipe: Recipe, longest: int) -> CanvasLayout:
        """For prompts of up to `longest` tokens: it holds whatever the recipe's rows may become.

        And a block behind that, to read beyond.
        """
        most = max_slots(recipe)
        assert most is not None
        start = _rounded(longest)
        return cls(start, start + _rounded(most + (recipe.block or 0)))

    def check(self, canvas: Canvas, recipe: Recipe) -> None:
        """Refuse rows that do not fit: their policy gave them more slots than it says."""
        if self.width is not None and self.start + int(canvas.horizon.max()) > self.width:
            raise limit_exceeded_error(recipe)


def supports_static_shapes(
    device: torch.device, recipe: Recipe, hooks: Hooks, count: int, *, packs: bool = False
) -> bool:
    """Can passes within a block all have the same shapes, and run without a question to the host?

    What is computed must be the block and nothing else, or all of a lone row, or all of all rows by a model
    that `packs` them; what is read, its masks; and a row must not be resized within it. Whoever steps in
    with a function of his own may do anything, and tokens that are drawn are drawn row by row, from
    generators that the host holds.
    """
    length, cache = combined_traits(recipe.length), type(recipe.cache)
    whole = cache is NoCache and (count == 1 or packs)
    return (
        device.type in DEVICES
        and ((cache is DualCache and recipe.block is not None) or whole)
        and length.reads == "masks"
        and length.resizes != "any time"
        and max_slots(recipe) is not None
        and not recipe.commit.traits.reads_answer
        and not recipe.unmask.traits.drops_columns
        and not recipe.sampling.guidance
        and not recipe.sampling.temperature
        and hooks == Hooks()
    )


def limit_exceeded_error(recipe: Recipe) -> SettingError:
    """What to say of a policy that does not keep to its own limit."""
    return SettingError(
        f"{type(recipe.length).__name__} gave a row more slots than the {max_slots(recipe)} that its traits "
        "say; let LengthTraits(limit=...) be the most that it plans or grows to, or None"
    )


def max_slots(recipe: Recipe) -> int | None:
    """The most slots a row may ever have; None: its policy does not say."""
    length, (*_, planner) = combined_traits(recipe.length), policy_layers(recipe.length)
    if length.max_slots is None and isinstance(planner, Fixed) and not length.grows:
        return planner.slots
    return None if length.max_slots is None else length.upper_bound


def _rounded(columns: int) -> int:
    """The next power of two."""
    return max(MIN_COLUMNS, 1 << (columns - 1).bit_length())
