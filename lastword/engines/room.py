"""What an evaluation does when prompt and canvas need more positions than the model has.

One rule, the same for every recipe, so that paired arms stay paired: the canvas is shortened to what
is left behind the prompt; where less than LEAST slots are left, the sample is not asked and scores 0.
Records say which happened, and tables count both. `drift` leaves out what does not fit whole: an
expected length of a shorter canvas is another number, not a worse one.
"""

from __future__ import annotations

from lastword.models.base import MaskPredictor
from lastword.policies.length.wrapper import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve

LEAST = 64  # room for a short program: the median references of HumanEval and MBPP need about 50


def within_room(recipe: Recipe, model: MaskPredictor, prompt: int) -> Recipe | None:
    """A settled recipe for a prompt of so many tokens: itself, on a shorter canvas, or None: too long."""
    room = model.max_seq_len - prompt
    if combined_traits(recipe.length).upper_bound <= room:
        return recipe
    return resolve(recipe, model, room=room) if room >= LEAST else None
