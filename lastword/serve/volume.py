"""Volume: how many columns an answer is likely to take, learnt by recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastword.recipe.recipe import Recipe
from lastword.serve.schedule import LEARNING, MOST_RECIPES


@dataclass
class Volume:
    """Columns of answers by what was guessed of them: a pass a token, all columns of the row in each.

    Unlike seconds they say nothing of the machine, nor of who shared the passes: what replicas have before
    them can be compared by them.
    """

    shares: dict[Recipe, float] = field(default_factory=dict)

    def learn(self, recipe: Recipe, guessed: float, columns: int) -> None:
        """From an answer that is done."""
        seen = columns / max(guessed, 1.0)
        before = self.shares.pop(recipe, seen)
        self.shares[recipe] = before + LEARNING * (seen - before)
        if len(self.shares) > MOST_RECIPES:
            del self.shares[next(iter(self.shares))]

    def left(self, recipe: Recipe, tokens: float, width: int, taken: int) -> float:
        """Columns still to come of so many tokens in rows of such a width: those of a pass at least."""
        return max(self.shares.get(recipe, 1.0) * guessed(tokens, width) - taken, float(width))


def guessed(tokens: float, width: int) -> float:
    """Columns of an answer that takes a pass a token and no cache."""
    return tokens * width
