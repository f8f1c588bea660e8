"""Recipe: the choices of a decoding as one value."""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass
from typing import Any

from lastword.decoding.sampling import Sampling
from lastword.errors import RecipeError, SettingError, WrongTypeError
from lastword.io.schema import parse_json_object
from lastword.policies.cache import Cache
from lastword.policies.commit import CommitRule
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.wrappers import combined_traits
from lastword.policies.unmask.rule import UnmaskRule
from lastword.recipe.compatibility import check_compatibility
from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, PLAIN, RECIPES
from lastword.recipe.text import check_field_names, from_data, parse_part, to_data, to_text
from lastword.validation import check_int, check_type, short_repr
from lastword.viz.html import recipe_html

_DEFAULT = RECIPES[DEFAULT_RECIPE].choices
KINDS: dict[str, type] = {
    "length": LengthPolicy,
    "unmask": UnmaskRule,
    "commit": CommitRule,
    "cache": Cache,
    "sampling": Sampling,
}


@dataclass(frozen=True)
class Recipe:
    """A row of a results table, a server setting, a JSON field. What is left out is the default's.

    What was left unsaid (None) is filled in when the recipe is settled for a model: `resolve`, which
    decoding calls. `block=None` is then one block for the whole answer, or blocks of 32 where a part works
    by block: a length that acts between them, as the default one does, or a cache that keeps what lies
    outside of one.
    """

    length: LengthPolicy = _DEFAULT["length"]
    unmask: UnmaskRule = _DEFAULT["unmask"]
    commit: CommitRule = _DEFAULT["commit"]
    cache: Cache = _DEFAULT["cache"]
    block: int | None = None
    sampling: Sampling = _DEFAULT["sampling"]

    def __post_init__(self) -> None:
        for axis, kind in KINDS.items():
            part = getattr(self, axis)
            if not isinstance(part, kind):
                raise WrongTypeError(
                    f"{axis}={short_repr(part)} was given; it must be one of "
                    f"{', '.join(cls.__name__ for cls in PARTS[axis].values())}"
                )
        if self.block is not None:
            check_int("Recipe", "block", self.block, minimum=1)
        check_compatibility(self.length, self.unmask, self.commit, self.cache, self.sampling)

    @classmethod
    def named(cls, name: str) -> Recipe:
        """The recipe of this name: `careful`, `fast`, `paper`, `fixed`. Limits are left to the model.

        >>> Recipe.named("paper").label()
        'survival'
        """
        if name not in RECIPES:
            near = difflib.get_close_matches(str(name).lower(), RECIPES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise RecipeError(
                f"there is no recipe called {short_repr(name)}; known: {', '.join(RECIPES)}{hint} Give "
                "single "
                "parts by axis (length='survival'), and one of your own as a Recipe (on the command line as "
                "a file of its JSON, --recipe ./FILE)"
            )
        return cls(**RECIPES[name].choices)

    @classmethod
    def coerce(cls, recipe: object) -> Recipe:
        """The recipe, or that of a name, the default for None; anything else is a mistake."""
        if isinstance(recipe, str):
            return cls.named(recipe)
        if recipe is not None and not isinstance(recipe, Recipe):
            raise WrongTypeError(
                f"recipe={short_repr(recipe)} was given; it must be a Recipe or the name of one "
                f"({', '.join(RECIPES)}): read a saved one with Recipe.from_json, or give single parts by "
                "name (length='survival')"
            )
        return recipe or cls()

    def max_passes(self, slots: int) -> int:
        """The most passes that decoding so many slots takes, whatever the model says.

        A canvas that grows may open any number of windows, down to one mask each.
        """

        def passes(masks: int) -> int:
            counted = self.unmask.max_passes(masks)
            return masks if counted is None else counted  # who relies on it was refused

        if combined_traits(self.length).grows:
            most = slots * passes(1)
        else:
            block = min(self.block or slots, slots)
            rest = slots % block
            most = slots // block * passes(block) + (passes(rest) if rest else 0)
        # Masks a model proposes are chosen again until it fills one or is given up on.
        return most + slots if self.sampling.propose_mask else most

    def with_choices(self, **choices: Any) -> Recipe:
        """This recipe with some choices replaced; text is looked up by name, None changes nothing."""
        unknown = sorted(set(choices) - {field.name for field in dataclasses.fields(self)})
        if unknown:
            raise SettingError(f"a recipe has no setting {unknown[0]!r}; known: {', '.join(PARTS)}")
        return dataclasses.replace(
            self,
            **{
                name: parse_part(name, choice) if isinstance(choice, str) and name in PARTS else choice
                for name, choice in choices.items()
                if choice is not None
            },
        )

    def label(self) -> str:
        """The choices in a line, by the names of the command line; those of a plain decoding are left out.

        >>> from lastword import AboveThreshold, Survival
        >>> Recipe(length=Survival(256), unmask=AboveThreshold(0.9), block=32).label()
        'survival:256, threshold, block 32'
        """
        parts = [
            self.length,
            *(p for axis, usual in PLAIN.items() if (p := getattr(self, axis)) != usual),
        ]
        block = [f"block {self.block}"] if self.block else []
        return ", ".join([*map(to_text, parts), *block])

    def __str__(self) -> str:
        return self.label()

    def _repr_html_(self) -> str:
        parts = {axis: getattr(self, axis) for axis in KINDS}
        return recipe_html({axis: (to_text(own), own) for axis, own in parts.items()}, self.block)

    def to_json(self) -> str:
        return json.dumps({f.name: to_data(getattr(self, f.name)) for f in dataclasses.fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """A saved recipe. What it may hold is what its parts take: each checks its own fields."""
        check_type("Recipe.from_json", "text", text, str, "a recipe's JSON")
        try:
            data = parse_json_object(text)
        except ValueError as broken:
            raise RecipeError(
                f"the recipe is not JSON as we read it ({broken}); give one that Recipe.to_json() wrote, or "
                "a recipe's name"
            ) from broken
        return cls(**{name: from_data(name, value) for name, value in check_field_names(cls, data).items()})
