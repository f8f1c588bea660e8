"""Checks a setting makes of itself when it is made, so that no loop has to."""

from __future__ import annotations

import math
from typing import Any

from lastword.errors import SettingError, WrongTypeError

# No canvas, block, batch or window is larger: more columns than any model has positions.
MOST_SLOTS = 2**20
# No ledger counts more: columns, squares, bytes.
MOST_COUNTED = 10**15
# No weight, temperature or factor is larger.
MOST_NUMBER = 1e9
# What a generator takes for a seed.
LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1

SHOWN = 60  # letters of a value that was given, in a message


def shown(value: object) -> str:
    """A value as a message shows it: whatever it is, however long, on one line."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # a value of a user's own, or a number with more digits than Python prints
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def check_type(
    owner: str, name: str, value: Any, kind: type | tuple[type, ...], wanted: str
) -> None:
    """A value of a class, or of one of several; `wanted` says in words what to give."""
    if not isinstance(value, kind):
        raise WrongTypeError(
            f"{owner}({name}={shown(value)}) was given, a {type(value).__name__}; {name} must be {wanted}"
        )


def check_whole(owner: str, name: str, value: Any, *, least: int, most: int = MOST_SLOTS) -> None:
    """A whole number from `least` to `most`. True and 2.0 are not whole numbers here."""
    given = f"{owner}({name}={shown(value)}) was given"
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(f"{given}; {name} must be a whole number, {least} or more")
    if not least <= value <= most:
        bound = f"{least} or more" if value < least else f"at most {most}"
        raise SettingError(f"{given}; {name} must be a whole number, {bound}")


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: int | float | None = None,
    least: int | float | None = None,
    below: int | float | None = None,
    most: int | float | None = None,
) -> None:
    """A finite number between the bounds: `above` and `below` exclude themselves."""
    most = MOST_NUMBER if most is None and below is None else most
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = (
        is_number
        and value == value  # NaN is not
        and abs(value) != math.inf
        and (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    if not fits:
        bounds = {"above": above, "at least": least, "below": below, "at most": most}
        asked = " and ".join(f"{words} {b:g}" for words, b in bounds.items() if b is not None)
        kind = SettingError if is_number else WrongTypeError
        raise kind(f"{owner}({name}={shown(value)}) was given; {name} must be a number {asked}")


def check_choice(owner: str, name: str, value: Any, *choices: str | bool) -> None:
    """One of a few values."""
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        listed = " or ".join(repr(choice) for choice in choices)
        kind = SettingError if isinstance(value, (str, bool)) else WrongTypeError
        raise kind(f"{owner}({name}={shown(value)}) was given; {name} must be {listed}")
