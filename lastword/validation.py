"""Argument checks shared by all settings: types, ranges and choices."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from lastword.errors import SettingError, WrongTypeError

# No canvas, block, batch or window is larger: more columns than any model has positions.
MAX_SLOTS = 2**20
# No ledger counts more: columns, squares, bytes.
MAX_COUNT = 10**15
# No weight, temperature or factor is larger.
MAX_NUMBER = 1e9
# Nothing colder is told from 0.
MIN_TEMPERATURE = 1e-6
# What a generator takes for a seed.
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1

MAX_REPR_LENGTH = 60  # letters of a value that was given, in a message


def short_repr(value: object) -> str:
    """A value as a message shows it: whatever it is, however long, on one line."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # a value of a user's own, or a number with more digits than Python prints
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= MAX_REPR_LENGTH else f"{text[: MAX_REPR_LENGTH - 3]}..."


def check_type(owner: str, name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """A value of a class, or of one of several; `wanted` says in words what to give."""
    if not isinstance(value, kind):
        raise _wrong_type(owner, name, value, wanted)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A list or what is like one. Text and bytes are not, nor is what has no order or can be read once."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def check_list(owner: str, name: str, value: Any, wanted: str) -> None:
    """A list or what is like one; `wanted` says of what."""
    if not is_list(value):
        raise _wrong_type(owner, name, value, wanted)


def _wrong_type(owner: str, name: str, value: object, wanted: str) -> WrongTypeError:
    return WrongTypeError(
        f"{owner}({name}={short_repr(value)}) was given, of type {type(value).__name__}; {name} must be "
        f"{wanted}"
    )


def check_callable(owner: str, name: str, value: Any, takes: tuple[str, ...]) -> None:
    """A function that can be called with so many values."""
    called = f"{name}({', '.join(takes)})"
    given = f"{owner}({name}={short_repr(value)}) was given"
    if not callable(value) or hasattr(type(value), "cost_summary"):  # a part of a recipe has one
        raise WrongTypeError(f"{given}; {name} must be a function, called as {called}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # written in C: it says so when it is called
        return
    try:
        signature.bind(*takes)
    except TypeError as wrong:
        raise WrongTypeError(f"{given}; it is called as {called} ({wrong})") from wrong


def check_int(owner: str, name: str, value: Any, *, minimum: int, maximum: int = MAX_SLOTS) -> None:
    """A whole number from `least` to `most`. True and 2.0 are not whole numbers here."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and minimum <= value <= maximum:
        return
    bound = f"at most {maximum}" if is_whole and value > maximum else f"{minimum} or more"
    kind = SettingError if is_whole else WrongTypeError
    raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be a whole number, {bound}")


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: int | float | None = None,
    minimum: int | float | None = None,
    below: int | float | None = None,
    maximum: int | float | None = None,
) -> None:
    """A finite number between the bounds: `above` and `below` exclude themselves."""
    maximum = MAX_NUMBER if maximum is None and below is None else maximum
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = (
        is_number
        and value == value  # NaN is not
        and abs(value) != math.inf
        and (above is None or value > above)
        and (minimum is None or value >= minimum)
        and (below is None or value < below)
        and (maximum is None or value <= maximum)
    )
    if not fits:
        bounds = {"above": above, "at least": minimum, "below": below, "at most": maximum}
        asked = " and ".join(f"{words} {b:g}" for words, b in bounds.items() if b is not None)
        kind = SettingError if is_number else WrongTypeError
        raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be a number {asked}")


def check_temperature(owner: str, name: str, value: Any) -> None:
    """0, or a number that a logit can be divided by without leaving float32."""
    check_number(owner, name, value, minimum=0)
    if 0 < value < MIN_TEMPERATURE:
        raise SettingError(
            f"{owner}({name}={short_repr(value)}) was given; {name} must be 0 or at least {MIN_TEMPERATURE:g}"
        )


def check_choice(owner: str, name: str, value: Any, *choices: str | bool) -> None:
    """One of a few values."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        listed = " or ".join(repr(choice) for choice in choices)
        kind = SettingError if isinstance(value, (str, bool)) else WrongTypeError
        raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be {listed}")
