"""Conversion of parts to text (command line) and plain data (JSON), and back."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from lastword.errors import LastwordError, RecipeError
from lastword.io.schema import parse_json
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.registry import ALIASES, PARTS, SHORTHANDS
from lastword.validation import check_number, short_repr

QUOTED_OR_CHARACTER = r'"(?:[^"\\]|\\.)*"|.'
OPENING, CLOSING = "([{", ")]}"

# Field names from before version 0.2, which are parsed but never written; a part has one of the current names.
FIELD_ALIASES = {
    "by": ("expansion_factor", "increment"),
    "columns": ("max_tokens_computed",),
    "cut": ("truncation_cost",),
    "early": ("early_threshold",),
    "end": ("end_threshold",),
    "enough": ("eos_threshold", "target_probability"),
    "explore": ("exploration_steps",),
    "high": ("rho_high",),
    "history": ("stability_window",),
    "keep_growing": ("expand_threshold",),
    "late": ("late_threshold",),
    "lost": ("low_threshold",),
    "low": ("rho_low",),
    "middle": ("middle_threshold",),
    "noise": ("choice_temperature",),
    "pace": ("tokens_per_step", "max_tokens_per_step", "scheduler"),
    "passes": ("max_passes", "max_adjust_steps"),
    "probes": ("max_probes",),
    "reach": ("min_confidence",),
    "reading": ("interpretation",),
    "region": ("answer_length",),
    "relaxed": ("relaxed_threshold",),
    "share": ("update_ratio",),
    "spread": ("stability_std",),
    "start": ("start_threshold",),
    "sure": ("high_confidence",),
    "unit": ("expansion_factor",),
    "window": ("eos_window",),
    "within": ("tolerance",),
}
MAX_TEXT_LENGTH = 10_000  # characters of a part as text
MAX_NESTING = 8  # parts inside parts, and lists inside lists


def parse_part(axis: str, text: str, *, depth: int = 0) -> Any:
    """Return the part written as `survival`, `fixed:256` or `survival:512,estimate=quantile:0.9`, for example.

    The first value may be given without the name of its field; values are JSON, or the text of a part. An inner
    part with several settings goes in brackets: `stop-at-end:(survival:512,interpretation=auto)`.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise RecipeError(f"{axis}={short_repr(text)} has {len(text)} characters; give at most {MAX_TEXT_LENGTH}")
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    name, _, settings = inner.partition(":")
    cls = _lookup(axis, name)
    names = list(inspect.signature(cls).parameters)
    data: list[tuple[str, Any]] = []
    for index, setting in enumerate(filter(None, _split(settings))):
        named = re.match(r"(\w+)=", setting)
        if not named and (index or not names):
            raise RecipeError(
                f"{short_repr(text)} sets {short_repr(setting)} without a field name; {name} takes "
                f"{', '.join(names) or 'no fields'}: write field=value, and put an inner part with several settings "
                "in brackets, as in stop-at-end:(survival:512,interpretation=auto)"
            )
        data.append((named[1], _value(setting[named.end() :])) if named else (names[0], _value(setting)))
    return _build(cls, name, data, depth)


def to_text(value: Any) -> str:
    """Return a part or a value as text, without settings that have their default: the inverse of `parse_part`.

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
    """Split a text at its commas, except inside brackets and quotes."""
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
    spelled = name.lower().replace("-", "_")
    near = next((part for part, others in ALIASES.items() if spelled in others and part in parts), None)
    near = near or next(iter(difflib.get_close_matches(spelled.replace("_", "-"), parts, n=1, cutoff=0.5)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    raise RecipeError(
        f"there is no {axis} called {short_repr(name)}; known: {', '.join(parts)}{hint}; for a part of your code, "
        "import the module that registers it (--import MODULE on the command line)"
    )


def check_field_names(cls: Callable[..., Any], data: Iterable[str]) -> None:
    """Raise RecipeError unless all names are fields of the class."""
    names = list(inspect.signature(cls).parameters)
    for name in data:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            inner = next((field for field in names if field in PARTS), None)
            hint = f"; a setting of its {inner} goes in brackets: {inner}=(name:{name:.40}=...)" if inner else ""
            hint = f"; did you mean {near[0]!r}?" if near else hint
            known = ", ".join(names) or "none"
            raise RecipeError(f"{cls.__name__} has no field {short_repr(name)}; known: {known}{hint}")


def to_data(value: Any) -> Any:
    """Return plain data for JSON: parts become objects with their name and fields."""
    if not dataclasses.is_dataclass(value):
        return value
    data = {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    name = _name_of(value)
    if name is None:
        raise RecipeError(
            f"{type(value).__name__} is not registered, so a recipe with it cannot be saved; put @lastword.register "
            "above the class and give it a name (for length policies, unmask and commit rules, caches, schedules and "
            "interpretations)"
        )
    return {"name": name, **data}


def from_data(axis: str, data: Any, *, depth: int = 0) -> Any:
    """Return the part or value for plain data, the inverse of `to_data`. A part may also be given as its text."""
    if depth > MAX_NESTING:
        raise RecipeError(f"{axis} is {short_repr(data)}, nested {depth} levels deep; nest at most {MAX_NESTING}")
    if axis not in PARTS and isinstance(data, dict):
        raise RecipeError(f"{axis} is {short_repr(data)}; an object is allowed only where a part belongs")
    if axis not in PARTS and isinstance(data, list):  # parts must be hashable
        return tuple(from_data(axis, value, depth=depth + 1) for value in data)
    if axis not in PARTS:
        return data
    if isinstance(data, str):
        return parse_part(axis, data, depth=depth)
    if axis == "schedule" and isinstance(data, (int, float)) and not isinstance(data, bool):
        check_number("recipe", "tokens_per_step", data, above=0, maximum=2**53)
        return EqualShares(float(data))  # a number alone sets `tokens_per_step`
    if not isinstance(data, dict):
        raise RecipeError(f"{axis} is {short_repr(data)}; give a name, or an object with a name and fields")
    name = data.get("name", "sampling" if axis == "sampling" else "")
    settings = [(field, value) for field, value in data.items() if field != "name"]
    return _build(_lookup(axis, name), name, settings, depth)


def _build(cls: Callable[..., Any], name: str, settings: Iterable[tuple[str, Any]], depth: int) -> Any:
    """Return the part of class `cls` with these settings, whose fields may have names from before version 0.2."""
    names, data = list(inspect.signature(cls).parameters), {}
    for field, value in settings:
        if field not in names:
            field = next((new for new in FIELD_ALIASES.get(field, ()) if new in names), field)
        if field in data:
            raise RecipeError(
                f"{field} of {name} is set twice (a value without a name sets {names[0]}, and names from before 0.2 "
                "count); give it once"
            )
        data[field] = value
    check_field_names(cls, data)
    fields = {field: from_data(field, value, depth=depth + 1) for field, value in data.items()}
    try:
        return cls(**fields)
    except LastwordError:
        raise
    except TypeError as error:
        raise RecipeError(f"{name} cannot be made from {short_repr(fields)}: {error}") from error
