"""Recipe: the parts of a decoding as one value, checked for compatibility."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lastword.canvas.contracts import check_traits
from lastword.decoding.sampling import Sampling
from lastword.errors import RecipeError, SettingError, WrongTypeError
from lastword.io.schema import parse_json_object
from lastword.policies.cache import Cache, CacheTraits
from lastword.policies.commit import CommitRule, CommitTraits
from lastword.policies.length.policy import LengthPolicy, LengthTraits
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits, max_passes
from lastword.recipe.registry import CONTRACTS, DEFAULT_RECIPE, PARTS, PLAIN, RECIPES
from lastword.recipe.text import check_field_names, from_data, parse_part, to_data, to_text
from lastword.validation import check_int, check_type, short_repr
from lastword.viz.html import recipe_html

_DEFAULT = RECIPES[DEFAULT_RECIPE].choices
_AXES = ("length", "unmask", "commit", "cache", "sampling")


@dataclass(frozen=True)
class Recipe:
    """The parts of a decoding. Parts that are not given are those of the default recipe.

    Unset values (None) are filled in by `resolve`, which decoding calls with its model. An unset `block` becomes 32 if
    a part works by block (a length policy that resizes between blocks, as the default one does, or a block cache);
    otherwise the whole answer is one block.
    """

    length: LengthPolicy = _DEFAULT["length"]
    unmask: UnmaskRule = _DEFAULT["unmask"]
    commit: CommitRule = _DEFAULT["commit"]
    cache: Cache = _DEFAULT["cache"]
    block: int | None = None
    sampling: Sampling = _DEFAULT["sampling"]

    def __post_init__(self) -> None:
        for axis in _AXES:
            part = getattr(self, axis)
            if not isinstance(part, CONTRACTS[axis]):
                raise WrongTypeError(
                    f"{axis}={short_repr(part)} was given; it must be one of "
                    f"{', '.join(cls.__name__ for cls in PARTS[axis].values())}"
                )
        if self.block is not None:
            check_int("Recipe", "block", self.block, minimum=1)
        policies = {CommitTraits: self.commit, CacheTraits: self.cache, UnmaskTraits: self.unmask}
        for kind, part in [*policies.items(), *((LengthTraits, layer) for layer in policy_layers(self.length))]:
            check_traits(part, kind)
        for conflict in conflicts(self):
            raise SettingError(conflict)

    @classmethod
    def named(cls, name: str) -> Recipe:
        """Return the recipe `careful`, `fast`, `paper` or `fixed`. Its limits are unset.

        >>> Recipe.named("paper").label()
        'survival'
        """
        if name not in RECIPES:
            near = difflib.get_close_matches(str(name).lower(), RECIPES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise RecipeError(
                f"there is no recipe called {short_repr(name)}; known: {', '.join(RECIPES)}{hint} Give single parts "
                "by axis (length='survival'), or a Recipe (on the command line a file of its JSON, --recipe ./FILE)"
            )
        return cls(**RECIPES[name].choices)

    @classmethod
    def coerce(cls, recipe: object) -> Recipe:
        """Return a Recipe unchanged, the recipe of a name, or the default recipe for None."""
        if isinstance(recipe, str):
            return cls.named(recipe)
        if recipe is not None and not isinstance(recipe, Recipe):
            raise WrongTypeError(
                f"recipe={short_repr(recipe)} was given; it must be a Recipe or the name of one "
                f"({', '.join(RECIPES)}): read a saved one with Recipe.from_json, or give single parts by name "
                "(length='survival')"
            )
        return recipe or cls()

    def max_passes(self, slots: int) -> int:
        """Return the most passes that decoding `slots` slots can take, whatever the model predicts."""

        def window(masks: int) -> int:
            passes = max_passes(self.unmask, masks)
            return masks if passes is None else passes  # None: `conflicts` rejects policies that need the number

        if combined_traits(self.length).grows:
            passes = slots * window(1)  # a growing canvas may start any number of windows, of one mask each
        else:
            block = min(self.block or slots, slots)
            passes = slots // block * window(block) + (window(slots % block) if slots % block else 0)
        # A slot with a proposed mask token stays open for another pass, until it is filled or abandoned.
        return passes + slots if self.sampling.propose_mask else passes

    def with_choices(self, **choices: Any) -> Recipe:
        """Return the recipe with some parts replaced; text is parsed as a part, and None keeps the part."""
        fields = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(choices) - fields)
        if unknown:
            raise SettingError(f"a recipe has no setting {unknown[0]!r}; known: {', '.join(sorted(fields))}")
        parts = {
            name: parse_part(name, choice) if isinstance(choice, str) and name in PARTS else choice
            for name, choice in choices.items()
            if choice is not None
        }
        return dataclasses.replace(self, **parts) if parts else self

    def with_sampling(
        self,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        guidance: float | None = None,
    ) -> Recipe:
        """Return the recipe with some sampling settings replaced; None keeps the recipe's value.

        With `temperature=0` the most likely token is taken, so `top_p` and `top_k` have no effect and are removed,
        except for `Sampling(score="draw")`, whose rules compare the filtered distribution.
        """
        if temperature is not None:
            Sampling(temperature=temperature)  # checks the value before it is compared with 0
        Sampling(temperature=1.0, top_p=top_p, top_k=top_k)  # checks values that temperature 0 removes below
        given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "guidance": guidance}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if temperature == 0 and self.sampling.score == "model":
            changes |= {"top_p": None, "top_k": None}
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, **changes)) if changes else self

    def label(self) -> str:
        """Return the length and the parts that differ from plain decoding, each as on the command line.

        >>> from lastword import AboveThreshold, Survival
        >>> Recipe(length=Survival(256), unmask=AboveThreshold(0.9), block=32).label()
        'survival:256, threshold, block 32'
        """
        parts = [self.length, *(p for axis, plain in PLAIN.items() if (p := getattr(self, axis)) != plain)]
        block = [f"block {self.block}"] if self.block else []
        return ", ".join([*map(to_text, parts), *block])

    __str__ = label

    def _repr_html_(self) -> str:
        parts = {axis: getattr(self, axis) for axis in _AXES}
        return recipe_html({axis: (to_text(part), part) for axis, part in parts.items()}, self.block)

    def to_json(self) -> str:
        return json.dumps({f.name: to_data(getattr(self, f.name)) for f in dataclasses.fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Return the recipe that `to_json` converted to this text."""
        check_type("Recipe.from_json", "text", text, str, "a recipe's JSON")
        try:
            data = parse_json_object(text)
        except ValueError as error:
            raise RecipeError(
                f"the recipe is not valid JSON ({error}); give the output of Recipe.to_json(), or the name of a recipe"
            ) from error
        check_field_names(cls, data)
        return cls(**{name: from_data(name, value) for name, value in data.items()})


def conflicts(recipe: Recipe) -> Iterator[str]:
    """Yield an error message for every combination of parts that cannot work together, with an alternative."""
    layers = [(type(policy).__name__, policy.traits) for policy in policy_layers(recipe.length)]
    unmask, rule = recipe.unmask, type(recipe.unmask).__name__
    cache, cache_name = recipe.cache.traits, type(recipe.cache).__name__
    hides = unmask.traits.hides_columns
    sees_all = "a rule that sees every column, such as AboveThreshold()"

    growing = [name for name, traits in layers if traits.grows and not traits.replans]
    if len(growing) > 1:
        outer, inner = growing[:2]
        yield (
            f"{outer} was put around {inner}; both lengthen an answer that seems to need room, so one would repeat or "
            f"undo the other: use {inner} alone, or {outer} around a policy that plans once, such as Survival()"
        )
    for index, (grower, traits) in enumerate(layers):
        planned, limit = max(inner.min_slots for _, inner in layers[index:]), traits.max_slots
        if traits.grows and limit is not None and planned >= limit:
            yield (
                f"{grower} has a limit of {limit} around a plan of {planned} slots, so no row can ever grow: raise "
                f"the limit above {planned}, plan fewer slots, or leave {grower} out"
            )
    bounding = [name for name, traits in layers if traits.bounds_cost]
    resizing = [name for name, traits in layers if traits.resizes == "any time"]
    if bounding and resizing:
        yield (
            f"{bounding[0]} was put around {resizing[-1]}, which removes slots that were paid for, so its bound would "
            f"not hold: use {resizing[-1]} alone, or {bounding[0]} around a policy that plans once or resizes between "
            "blocks, such as Survival() or Reread()"
        )
    if bounding and max_passes(unmask, 1) is None:
        yield (
            f"{bounding[0]} was given with {rule}, which follows a schedule and may idle but does not say how many "
            f"passes that takes: give {rule} a method max_passes(masks), or use a rule that has one, such as "
            "MostConfident()"
        )
    confident = [name for name, traits in layers if traits.uses_confidence]
    if confident and not unmask.traits.uses_model:
        yield (
            f"{confident[0]} was given with {rule}; it resizes by the model's confidence in the remaining masks, and "
            f"{rule} fills masks regardless of confidence: use a rule that depends on the model, such as "
            "AboveThreshold(), or Survival(), which plans before anything is written"
        )
    if hides and cache.stores_states:
        yield (
            f"{rule} was given with {cache_name}; {rule} leaves columns out of its passes, so their cached states "
            f"would be outdated: use NoCache() (on the command line --cache none), or {sees_all}"
        )
    one_step = [name for name, traits in layers if traits.reads == "one step"]
    if one_step and (cache.refreshes_by_block or hides):
        instead = "NoCache() or FeatureCache()" if cache.refreshes_by_block else sees_all
        part = cache_name if cache.refreshes_by_block else rule
        yield (
            f"{one_step[0]} was given with {part}; it predicts from one step, and {part} may keep that pass from "
            f"reading the whole answer: use {instead}, step 0, which reads all of it, or Survival(), which probes"
        )
    ahead = [name for name, traits in layers if traits.reads == "ahead"]
    if ahead and (cache.stale_suffix or hides):
        instead = "PrefixCache(), FeatureCache() or NoCache()" if cache.stale_suffix else sees_all
        part = cache_name if cache.stale_suffix else rule
        yield (
            f"{ahead[0]} was given with {part}; it reads the slots behind a block in the pass that completes it, and "
            f"{part} leaves them out of that pass: use {instead}, or GrowWhenFull(Survival()), which needs the block "
            "only"
        )
    moving = [name for name, traits in layers if traits.grows or traits.resizes == "any time"]
    if moving and recipe.commit.traits.uses_slot_indices:
        yield (
            f"{type(recipe.commit).__name__} was given slots at fixed indices (literals, or an answer_start of 0 or "
            f"more) with {moving[-1]}, which moves the answer's end while decoding: count its region from the end "
            "(answer_start=-5) and leave out literals, or use a length that is planned once, such as Survival()"
        )
    if recipe.sampling.propose_mask and not unmask.traits.follows_schedule:
        yield (
            f"Sampling(propose_mask=True) was given with {rule}, which might wait forever for a mask that the model "
            "refuses to fill; use a rule with a schedule, such as MostConfident(), or leave propose_mask out"
        )
