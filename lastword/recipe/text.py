"""Conversion of parts to text (command line) and plain data (JSON), and back."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lastword.errors import LastwordError, RecipeError
from lastword.io.schema import parse_json
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.registry import ALIASES, PARTS, SHORTHANDS
from lastword.validation import check_number, short_repr

QUOTED_OR_CHARACTER = r'"(?:[^"\\]|\\.)*"|.'
OPENING, CLOSING = "([{", ")]}"

# Field names of recipes before 0.2, by part: they are parsed but never written.
FIELD_ALIASES = {
    "budget": {"passes": "max_passes", "columns": "max_tokens_computed"},
    "cheapest": {"cut": "truncation_cost"},
    "cosine": {"pace": "tokens_per_step"},
    "daedal": {
        "by": "expansion_factor",
        "window": "eos_window",
        "enough": "eos_threshold",
        "keep_growing": "expand_threshold",
        "lost": "low_threshold",
    },
    "equal-shares": {"pace": "tokens_per_step"},
    "feature": {"share": "update_ratio"},
    "grow-when-full": {"by": "increment"},
    "local-leap": {"relaxed": "relaxed_threshold"},
    "maskgit": {"noise": "choice_temperature"},
    "prophet": {
        "early": "early_threshold",
        "middle": "middle_threshold",
        "late": "late_threshold",
        "region": "answer_length",
    },
    "reread": {"by": "increment"},
    "rho-eos": {
        "low": "rho_low",
        "high": "rho_high",
        "unit": "expansion_factor",
        "pace": "scheduler",
        "passes": "max_adjust_steps",
        "window": "eos_window",
    },
    "secant": {
        "probes": "max_probes",
        "enough": "target_probability",
        "within": "tolerance",
        "reading": "interpretation",
    },
    "slow-fast": {
        "sure": "high_confidence",
        "reach": "min_confidence",
        "explore": "exploration_steps",
        "history": "stability_window",
        "spread": "stability_std",
    },
    "stable-margin": {"start": "start_threshold", "end": "end_threshold"},
    "survival": {"reading": "interpretation"},
    "threshold": {"pace": "max_tokens_per_step"},
    "timesteps": {"pace": "tokens_per_step"},
}
MAX_TEXT_LENGTH = 10_000  # characters of a part as text
MAX_NESTING = 8  # parts inside parts, and lists inside lists


def parse_part(axis: str, text: str, *, depth: int = 0) -> Any:
    """Return the part of a text such as `survival`, `fixed:256` or `survival:512,estimate=quantile:0.9`.

    The first value may be given without the name of its field; values are JSON, or the text of a part. A part
    with several settings inside another part goes in brackets:
    `stop-at-end:(survival:512,interpretation=auto)`.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise RecipeError(f"{axis}={short_repr(text)} has {len(text)} characters; give at most {MAX_TEXT_LENGTH}")
    name, _, settings = _without_brackets(text).partition(":")
    cls = _lookup(axis, name)
    names = _fields(cls)
    data: dict[str, Any] = {}
    for index, setting in enumerate(filter(None, _split(settings))):
        named = re.match(r"(\w+)=", setting)
        if not named and (index or not names):
            raise RecipeError(
                f"{short_repr(text)} sets {short_repr(setting)} without a field name; {name} takes "
                f"{', '.join(names) or 'no fields'}: write field=value, and put an inner part with several "
                "settings in brackets, as in stop-at-end:(survival:512,interpretation=auto)"
            )
        field = _current_name(cls, named[1]) if named else names[0]
        if field in data:
            raise RecipeError(
                f"{short_repr(text)} sets {field} twice; the first value of {name} is its {field}: give it once"
            )
        data[field] = _value(setting[named.end() if named else 0 :])
    return _build(cls, name, data, depth)


def to_text(value: Any) -> str:
    """Return a setting as text, without defaults: the inverse of `parse_part`.

    A user-defined part that is not registered has no name and is written as its class name.
    """
    name = _name_of(value)
    if name is None:
        try:
            return json.dumps(value)
        except TypeError:
            return type(value).__name__
    settings = []
    for index, field in enumerate(dataclasses.fields(value)):
        item = getattr(value, field.name)
        if item == field.default:
            continue
        text = to_text(item)
        if dataclasses.is_dataclass(item) and set(text) & set(",:"):
            text = f"({text})"
        settings.append(text if not index else f"{field.name}={text}")
    return f"{name}:{','.join(settings)}" if settings else name


def _name_of(value: object) -> str | None:
    """Return the name of a registered part, and None for anything else."""
    name = str(getattr(value, "name", ""))
    return name if any(parts.get(name) is type(value) for parts in PARTS.values()) else None


def _split(text: str) -> list[str]:
    """Split at commas, except inside brackets and quotes."""
    parts, depth = [""], 0
    for piece in re.findall(QUOTED_OR_CHARACTER, text, re.DOTALL):
        if piece in OPENING:
            depth += 1
        elif piece in CLOSING:
            depth -= 1
        if depth < 0:
            break
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    if depth:
        raise RecipeError(
            f"the brackets in {short_repr(text)} do not match; close each one that is opened, as in "
            "stop-at-end:(survival:512,interpretation=auto)"
        )
    return parts


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _lookup(axis: str, name: object) -> Callable[..., Any]:
    parts: dict[str, Callable[..., Any]] = {**PARTS[axis], **SHORTHANDS.get(axis, {})}
    if not isinstance(name, str):
        raise RecipeError(f"{axis} has the name {short_repr(name)}; a part's name is text: {', '.join(parts)}")
    if name in parts:
        return parts[name]
    near = ALIASES.get(name.lower().replace("-", "_"))
    if near not in parts:
        spelled = name.lower().replace("_", "-")
        near = next(iter(difflib.get_close_matches(spelled, parts, n=1, cutoff=0.5)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    raise RecipeError(f"there is no {axis} called {short_repr(name)}; known: {', '.join(parts)}{hint}")


def _fields(cls: Callable[..., Any]) -> list[str]:
    """Return the settings of a part or a shorthand."""
    return list(inspect.signature(cls).parameters)


def _current_name(cls: Callable[..., Any], field: str) -> str:
    """Return the name of a field that may be written with the name it had before 0.2."""
    return FIELD_ALIASES.get(getattr(cls, "name", ""), {}).get(field, field)


def check_field_names(cls: Callable[..., Any], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data if all its names are fields of the class."""
    names = _fields(cls)
    for name in data:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            for inner in (part for part in names if part in PARTS and not near):
                hint = f"; a setting of its {inner} goes in brackets: {inner}=(name:{name:.40}=...)"
            raise RecipeError(
                f"{cls.__name__} has no field {short_repr(name)}; known: {', '.join(names) or 'none'}{hint}"
            )
    return data


def to_data(value: Any) -> Any:
    """Return plain data for JSON: parts become objects with their name and fields."""
    if not dataclasses.is_dataclass(value):
        return value
    data = {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    name = _name_of(value)
    if name is None:
        raise RecipeError(
            f"{type(value).__name__} is not registered, so a recipe with it cannot be saved; put "
            "@lastword.register above the class and give it a name (for length policies, unmask and commit "
            "rules, caches, schedules and interpretations)"
        )
    return {"name": name, **data}


def from_data(axis: str, data: Any, *, depth: int = 0) -> Any:
    """Return the value of plain data: the inverse of `to_data`. A part may also be given as its text."""
    if depth > MAX_NESTING:
        raise RecipeError(f"{axis} is {short_repr(data)}, nested {depth} levels deep; nest at most {MAX_NESTING}")
    if axis not in PARTS:
        return _hashable(axis, data, depth)
    if isinstance(data, str):
        return parse_part(axis, data, depth=depth)
    if axis == "schedule" and isinstance(data, (int, float)) and not isinstance(data, bool):
        check_number("recipe", "tokens_per_step", data, above=0, maximum=2**53)
        return EqualShares(float(data))  # a plain number is a pace
    if not isinstance(data, dict):
        raise RecipeError(f"{axis} is {short_repr(data)}; give a name, or an object with a name and fields")
    fields = {name: value for name, value in data.items() if name != "name"}
    name = data.get("name", "sampling" if axis == "sampling" else "")
    return _build(_lookup(axis, name), name, fields, depth)


def _hashable(axis: str, data: Any, depth: int) -> Any:
    """Return a JSON value with lists as tuples, because parts must be hashable; reject objects."""
    if isinstance(data, dict):
        raise RecipeError(f"{axis} is {short_repr(data)}; an object is allowed only where a part belongs")
    if isinstance(data, list):
        return tuple(from_data(axis, value, depth=depth + 1) for value in data)
    return data


def _build(cls: Callable[..., Any], name: str, data: Mapping[str, Any], depth: int) -> Any:
    """Return the part with the given fields, from a file or the command line."""
    current = {_current_name(cls, field): value for field, value in data.items()}
    if len(current) < len(data):
        raise RecipeError(f"{short_repr(dict(data))} sets a field of {name} by its old and its new name: give one")
    checked = check_field_names(cls, current)
    fields = {field: from_data(field, value, depth=depth + 1) for field, value in checked.items()}
    try:
        return cls(**fields)
    except LastwordError:
        raise
    except TypeError as error:
        raise RecipeError(f"{name} cannot be made from {short_repr(fields)}: {error}") from error
