"""Limits: what an operator allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.validation import check_int, check_number, check_type

if TYPE_CHECKING:
    from lastword.recipe.recipe import Recipe


@dataclass(frozen=True)
class Limits:
    """What requests may ask for, what they get unasked, and how much is taken on."""

    slots: int = 16  # rows decoded at once
    columns: int | None = None  # that rows at work may reserve together; None: slots times the model's own
    queue: int = 256  # answers that may wait
    body: int = 1_000_000  # bytes of a request
    prompt: int | None = None  # tokens; None: what the model has positions for
    answers: int = 16  # of one request: prompts times n
    horizon: int | None = None  # slots of a canvas; None: the model's
    seconds: float = 600.0  # of a request that names no deadline, and at most of one that does
    reading: float = 30.0  # seconds in which a reader must take what was sent
    drain: float = 30.0  # seconds that answers at work are given once the server stops
    recipes: bool = True  # may requests bring recipes of their own, beyond the named ones?
    recipe: Recipe | None = None  # of a request that names none; None: the default

    def __post_init__(self) -> None:
        for name in ("slots", "queue", "body", "answers"):
            check_int("Limits", name, getattr(self, name), minimum=1)
        for name in ("columns", "prompt", "horizon"):
            if getattr(self, name) is not None:
                check_int("Limits", name, getattr(self, name), minimum=1)
        for name in ("seconds", "reading", "drain"):
            check_number("Limits", name, getattr(self, name), above=0, maximum=86_400)
        if self.recipe is not None:
            from lastword.recipe.recipe import Recipe  # torch comes with it

            check_type("Limits", "recipe", self.recipe, Recipe, 'a Recipe, such as Recipe.named("fast")')
