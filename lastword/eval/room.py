"""What an evaluation does when prompt and canvas need more positions than the model has.

One rule, the same for every recipe, so that paired arms stay paired: the canvas is shortened to what
is left behind the prompt; where less than LEAST slots are left, the sample is not asked and scores 0.
Records say which happened, and tables count both. `drift` leaves out what does not fit whole: an
expected length of a shorter canvas is another number, not a worse one.
"""

from __future__ import annotations

from dataclasses import replace

from lastword.length.within import within
from lastword.recipe.recipe import Recipe

LEAST = 64  # room for a short program: the median references of HumanEval and MBPP need about 50


def fitted(recipe: Recipe, prompt: int, positions: int) -> Recipe | None:
    """The recipe for a prompt of so many tokens: itself, on a shorter canvas, or None: too long.

    >>> from lastword import Fixed
    >>> fitted(Recipe(length=Fixed(1024)), 3500, 4096).length
    Fixed(slots=596)
    >>> fitted(Recipe(length=Fixed(1024)), 4090, 4096) is None
    True
    """
    room = positions - prompt
    length = within(recipe.length, max(room, 1))
    if length == recipe.length:
        return recipe
    return replace(recipe, length=length) if room >= LEAST else None
