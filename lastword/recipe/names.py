"""Parts by name: as text on the command line, as data in JSON, and back."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from lastword.cache import DualCache, FeatureCache, NoCache, PrefixCache
from lastword.calibration.ratios import PLAIN_ESTIMATES, READINGS
from lastword.commit import Never, Prophet, StableMargin
from lastword.errors import RecipeError
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
from lastword.passes.sampling import Sampling
from lastword.survival import Auto, Scaled
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


def default_length(limit: int | None = None) -> LengthPolicy:
    """The plan that costs least without costing accuracy, on four models' validation prompts.

    One probe read for what it is, a block more where the answer has not ended, none behind its end. The
    paper's own is `Survival()`. docs/decisions/0016-the-default.md has the figures. Without a limit, it is
    that of the model once there is one: see `Recipe.fitted`.
    """
    probe = Survival(reading=Auto()) if limit is None else Survival(limit, reading=Auto())
    return StopAtEnd(GrowWhenFull(probe, limit=limit))


# Names for parts put together. They are read and never written: what was read says what it is made of.
SHORTHANDS: dict[str, dict[str, Callable[..., Any]]] = {"length": {"default": default_length}}

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


def part(axis: str, text: str) -> Any:
    """A part from text: `survival`, `fixed:256`, `survival:512,estimate=quantile:0.9`, `default:512`.

    The first value may go without its field's name; values are JSON, or a part's text. A part inside
    another that has several settings goes in brackets: `stop-at-end:(survival:512,reading=auto)`.
    """
    name, _, settings = _unwrapped(text).partition(":")
    cls = _lookup(axis, name)
    names = _fields(cls)
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
    return _built(cls, name, {k: from_data(k, v) for k, v in known_fields(cls, data).items()})


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


def _lookup(axis: str, name: object) -> Callable[..., Any]:
    parts: dict[str, Callable[..., Any]] = {**PARTS[axis], **SHORTHANDS.get(axis, {})}
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


def _fields(cls: Callable[..., Any]) -> list[str]:
    """What a part can be set to, or what a shorthand for several can."""
    return list(inspect.signature(cls).parameters)


def known_fields(cls: Callable[..., Any], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data, if it holds nothing but fields of the class."""
    names = _fields(cls)
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


def as_data(value: Any) -> Any:
    """Dataclasses as objects with their name, so that a saved recipe reads by itself."""
    if not dataclasses.is_dataclass(value):
        return value
    names = {cls: name for parts in PARTS.values() for name, cls in parts.items()}
    data = {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    name = names.get(cast(type, type(value)))
    if name is None:
        raise RecipeError(
            f"{type(value).__name__} is no part we know by name, so a saved recipe could not be read "
            "back; pass the recipe as an object instead"
        )
    return {"name": name, **data}


def from_data(axis: str, data: Any) -> Any:
    """The inverse of `as_data`; a string on an axis of ours is a part's text."""
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
    return _built(cls, name, {k: from_data(k, v) for k, v in known_fields(cls, fields).items()})


def _hashable(data: Any) -> Any:
    """JSON knows no tuples; parts compare and hash, so they hold no lists."""
    return tuple(_hashable(value) for value in data) if isinstance(data, list) else data


def _built(cls: Callable[..., Any], name: str, fields: dict[str, Any]) -> Any:
    try:
        return cls(**fields)
    except TypeError as wrong:
        raise RecipeError(f"{name} cannot be made from {fields}: {wrong}") from wrong
