"""Recipe: the choices of a decoding as one value, by name where a name is handier."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from lastword.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.checks import check_whole
from lastword.commit import CommitRule, Never, Prophet, StableMargin
from lastword.composition import check_composition
from lastword.errors import RecipeError, SettingError
from lastword.length import (
    Budget,
    Calibrated,
    Daedal,
    Fixed,
    GrowWhenFull,
    LengthPolicy,
    Reread,
    RhoEos,
    Secant,
    StopAtEnd,
    Survival,
    SurvivalAtStep,
)
from lastword.models.weights import identity
from lastword.sampling import Sampling
from lastword.survival import Scaled
from lastword.survival.calibration import PLAIN_ESTIMATES, READINGS
from lastword.unmask import (
    AboveThreshold,
    AtRandom,
    CoinFlip,
    Cosine,
    EntropyBound,
    EqualShares,
    Factor,
    LargestMargin,
    LeftmostFirst,
    LowestEntropy,
    MaskGit,
    MostConfident,
    SlowFast,
    Timesteps,
    UnmaskRule,
)

# Every part by axis and name. The first field of a part is what "name:value" sets.
PARTS: dict[str, dict[str, type]] = {
    "length": {
        "fixed": Fixed,
        "survival": Survival,
        "calibrated": Calibrated,
        "survival-at-step": SurvivalAtStep,
        "reread": Reread,
        "secant": Secant,
        "stop-at-end": StopAtEnd,
        "grow-when-full": GrowWhenFull,
        "budget": Budget,
        "daedal": Daedal,
        "rho-eos": RhoEos,
    },
    "unmask": {
        "most-confident": MostConfident,
        "largest-margin": LargestMargin,
        "lowest-entropy": LowestEntropy,
        "at-random": AtRandom,
        "coin-flip": CoinFlip,
        "maskgit": MaskGit,
        "threshold": AboveThreshold,
        "factor": Factor,
        "entropy-bound": EntropyBound,
        "slow-fast": SlowFast,
        "leftmost-first": LeftmostFirst,
    },
    "commit": {"never": Never, "prophet": Prophet, "stable-margin": StableMargin},
    "cache": {"none": NoCache, "prefix": PrefixCache, "dual": DualCache, "feature": FeatureCache},
    "sampling": {"sampling": Sampling},
    "schedule": {"equal-shares": EqualShares, "timesteps": Timesteps, "cosine": Cosine},
    "estimate": {**PLAIN_ESTIMATES, "scaled": Scaled},
    "reading": dict(READINGS),
}

QUOTED_OR_LETTER = r'"(?:[^"\\]|\\.)*"|.'

# What the field calls them.
ALIASES = {
    "low_confidence": "most-confident",
    "maskgit_plus": "most-confident",
    "confidence": "most-confident",
    "topk_margin": "largest-margin",
    "margin": "largest-margin",
    "entropy": "lowest-entropy",
    "random": "at-random",
    "origin": "coin-flip",
    "linear": "equal-shares",
    "smartcrop": "quantile",
    "confidence_threshold": "threshold",
    "above_threshold": "threshold",
    "eb_sampler": "entropy-bound",
    "eb": "entropy-bound",
    "slow_fast_sampling": "slow-fast",
    "slowfast": "slow-fast",
    "sched": "stable-margin",
    "prefix_cache": "prefix",
    "dual_cache": "dual",
    "dllm_cache": "feature",
    "feature_cache": "feature",
}


@dataclass(frozen=True)
class Recipe:
    """A row of a results table, a server setting, a JSON field."""

    length: LengthPolicy = Survival()
    unmask: UnmaskRule = MostConfident()
    commit: CommitRule = Never()
    cache: Cache = NoCache()
    block: int | None = None
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        kinds = {
            "length": LengthPolicy,
            "unmask": UnmaskRule,
            "commit": CommitRule,
            "cache": Cache,
            "sampling": Sampling,
        }
        for axis, kind in kinds.items():
            part = getattr(self, axis)
            if not isinstance(part, kind):
                raise SettingError(
                    f"{axis}={part!r} was given; it must be one of "
                    f"{', '.join(cls.__name__ for cls in PARTS[axis].values())}"
                )
        if self.block is not None:
            check_whole("Recipe", "block", self.block, least=1)
        check_composition(self)

    @classmethod
    def checked(cls, recipe: object) -> Recipe:
        """The recipe, or the default for None; anything else is a mistake."""
        if recipe is not None and not isinstance(recipe, Recipe):
            raise SettingError(
                f"recipe={recipe!r} was given; it must be a Recipe: read a saved one with "
                "Recipe.from_json, or give single parts by name (length='survival')"
            )
        return recipe or cls()

    @property
    def reads_answer(self) -> bool:
        """Must every pass read the whole answer, or do the open masks do?"""
        return self.length.reads_answer or self.commit.reads_answer

    def fitted(self, model: object) -> Recipe:
        """This recipe for a model whose lengths may have been calibrated (`model.lengths`)."""
        calibration: Any = getattr(model, "lengths", None)
        length = self.length.fitted(calibration)
        for policy in length.layers():
            if isinstance(policy, Calibrated):
                raise SettingError(
                    f"{type(length).__name__} was put around Calibrated and does not pass on what the model "
                    "was calibrated to; give it a method `fitted`, as lastword.length.wrapper.Wrapper has"
                )
        if length == self.length:
            return self
        calibration.check(identity(model), "the model's calibration")
        self._check_decodes_as(calibration.made_with.get("recipe"))
        return dataclasses.replace(self, length=length)

    def _check_decodes_as(self, made_with: Any) -> None:
        """Refuse lengths of answers that were decoded otherwise."""
        if made_with is None:  # made by hand; it is taken at its word
            return
        then = Recipe.from_json(json.dumps(made_with))
        axes = ("unmask", "commit", "block", "sampling")
        other = [axis for axis in axes if getattr(then, axis) != getattr(self, axis)]
        if other:
            theirs, ours = (
                ", ".join(f"{axis} {as_text(getattr(recipe, axis))}" for axis in other).replace(
                    "block null", "no block"
                )
                for recipe in (then, self)
            )
            raise SettingError(
                f"the model was calibrated on answers decoded with {theirs}, and this recipe has {ours}, by "
                "which answers may come out longer: decode with the former, or calibrate for this recipe "
                "(lastword.calibrate(..., recipe=...), lastword calibrate --recipe FILE)"
            )

    def most_passes(self, slots: int) -> int:
        """The most passes that decoding so many slots takes, whatever the model says.

        A canvas that grows may open any number of windows, down to one mask each.
        """
        passes = self.unmask.most_passes
        if any(policy.grows for policy in self.length.layers()):
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
                name: part(name, choice) if isinstance(choice, str) and name in PARTS else choice
                for name, choice in choices.items()
                if choice is not None
            },
        )

    def label(self) -> str:
        """The choices in a line, as the command line takes them; usual ones are left out.

        >>> Recipe(length=Survival(256), unmask=AboveThreshold(0.9), block=32).label()
        'survival:256, threshold, block 32'
        """
        usual = Recipe()
        axes = ("unmask", "commit", "cache", "sampling")
        parts = [self.length, *(p for a in axes if (p := getattr(self, a)) != getattr(usual, a))]
        block = [f"block {self.block}"] if self.block else []
        return ", ".join([*map(as_text, parts), *block])

    def to_json(self) -> str:
        return json.dumps(_as_data(self), indent=None)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        try:
            data = json.loads(text)
        except ValueError as broken:
            raise RecipeError(f"the recipe is not JSON ({broken})") from broken
        if not isinstance(data, dict):
            raise RecipeError(f"the recipe is a JSON {type(data).__name__}; it must be an object")
        return cls(**{name: _from_data(name, value) for name, value in _known(cls, data).items()})


def part(axis: str, text: str) -> Any:
    """A part from text: `survival`, `fixed:256`, `survival:512,estimate=quantile:0.9`.

    The first value may go without its field's name; values are JSON, or a part's text. A part inside
    another that has several settings goes in brackets: `stop-at-end:(survival:512,reading=auto)`.
    """
    name, _, settings = _unwrapped(text).partition(":")
    cls = _lookup(axis, name)
    names = [field.name for field in dataclasses.fields(cls)]
    data: dict[str, Any] = {}
    for place, setting in enumerate(filter(None, _settings(settings))):
        named = re.match(r"(\w+)=", setting)
        if not named and (place or not names):
            raise RecipeError(
                f"{text!r} sets {setting!r} without a field name; {name} takes "
                f"{', '.join(names) or 'no fields'}: write field=value, and a part with several "
                "settings of its own in brackets, as in stop-at-end:(survival:512,reading=auto)"
            )
        field = named[1] if named else names[0]
        if field in data:
            raise RecipeError(
                f"{text!r} sets {field} twice; the first value of {name} is its {field}: give it once"
            )
        data[field] = _value(setting[named.end() if named else 0 :])
    return _built(cls, name, {k: _from_data(k, v) for k, v in _known(cls, data).items()})


def as_text(value: Any) -> str:
    """A setting as it is written on the command line: the inverse of `part`, defaults left out.

    A part of a user's own has no name there; its class's stands for it.
    """
    names = {cls: name for parts in PARTS.values() for name, cls in parts.items()}
    name = names.get(cast(type, type(value)))
    if name is None:
        try:
            return json.dumps(value)
        except TypeError:
            return type(value).__name__
    settings = []
    for place, field in enumerate(dataclasses.fields(value)):
        own = getattr(value, field.name)
        if own == field.default:
            continue
        text = as_text(own)
        if dataclasses.is_dataclass(own) and set(text) & set(",:"):
            text = f"({text})"
        settings.append(text if not place else f"{field.name}={text}")
    return f"{name}:{','.join(settings)}" if settings else name


def _settings(text: str) -> list[str]:
    """What commas part, those inside brackets or quotes left alone."""
    parts, depth = [""], 0
    for piece in re.findall(QUOTED_OR_LETTER, text, re.DOTALL):
        depth += (piece in ("(", "[", "{")) - (piece in (")", "]", "}"))
        if depth < 0:
            break
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    if depth:
        raise RecipeError(
            f"the brackets in {text!r} do not match; close each one that is opened, as in "
            "stop-at-end:(survival:512,reading=auto)"
        )
    return parts


def _unwrapped(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lookup(axis: str, name: object) -> type:
    parts = PARTS[axis]
    if not isinstance(name, str):
        raise RecipeError(f"{axis} is called {name!r}; a part's name is text: {', '.join(parts)}")
    if name in parts:
        return parts[name]
    ours = ALIASES.get(name.lower().replace("-", "_"))
    if ours not in parts:
        spelled = name.lower().replace("_", "-")
        ours = next(iter(difflib.get_close_matches(spelled, parts, n=1, cutoff=0.5)), None)
    hint = f"; did you mean {ours!r}?" if ours else ""
    raise RecipeError(f"there is no {axis} called {name!r}; known: {', '.join(parts)}{hint}")


def _known(cls: type, data: Mapping[str, Any]) -> Mapping[str, Any]:
    names = [field.name for field in dataclasses.fields(cls)]
    for name in data:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            for inner in (part for part in names if part in PARTS and not near):
                hint = f"; a setting of its {inner} goes in brackets: {inner}=(name:{name}=...)"
            raise RecipeError(
                f"{cls.__name__} has no field {name!r}; known: {', '.join(names) or 'none'}{hint}"
            )
    return data


def _as_data(value: Any) -> Any:
    """Dataclasses as objects with their name, so that a saved recipe reads by itself."""
    if not dataclasses.is_dataclass(value):
        return value
    names = {cls: name for parts in PARTS.values() for name, cls in parts.items()}
    data = {field.name: _as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    name = names.get(cast(type, type(value)))
    if name is None and not isinstance(value, Recipe):
        raise RecipeError(
            f"{type(value).__name__} is no part we know by name, so a saved recipe could not be read "
            "back; pass the recipe as an object instead"
        )
    return {"name": name, **data} if name else data


def _from_data(axis: str, data: Any) -> Any:
    """The inverse of `_as_data`; a string on an axis of ours is a part's text."""
    if axis not in PARTS:
        return _hashable(data)
    if isinstance(data, str):
        return part(axis, data)
    if axis == "schedule" and isinstance(data, (int, float)) and not isinstance(data, bool):
        return EqualShares(float(data))  # a bare number is a pace
    if not isinstance(data, dict):
        raise RecipeError(f"{axis} is {data!r}; give a name, or an object with a name and fields")
    fields = {name: value for name, value in data.items() if name != "name"}
    name = data.get("name", "sampling" if axis == "sampling" else "")
    cls = _lookup(axis, name)
    return _built(cls, name, {k: _from_data(k, v) for k, v in _known(cls, fields).items()})


def _hashable(data: Any) -> Any:
    """JSON knows no tuples; parts compare and hash, so they hold no lists."""
    return tuple(_hashable(value) for value in data) if isinstance(data, list) else data


def _built(cls: type, name: str, fields: dict[str, Any]) -> Any:
    try:
        return cls(**fields)
    except TypeError as wrong:
        raise RecipeError(f"{name} cannot be made from {fields}: {wrong}") from wrong
