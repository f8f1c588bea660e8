"""Checks a setting makes of itself when it is made, so that no loop has to."""

from __future__ import annotations

import math
from typing import Any

from lastword.errors import SettingError


def check_whole(owner: str, name: str, value: Any, *, least: int) -> None:
    """A whole number, at least `least`. True and 2.0 are not whole numbers here."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(
            f"{owner}({name}={value!r}) was given; {name} must be a whole number, {least} or more"
        )


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
    fits = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    if not fits:
        bounds = {"above": above, "at least": least, "below": below, "at most": most}
        asked = " and ".join(f"{words} {b:g}" for words, b in bounds.items() if b is not None)
        raise SettingError(
            f"{owner}({name}={value!r}) was given; {name} must be a number {asked}".rstrip()
        )


def check_choice(owner: str, name: str, value: Any, *choices: str | bool) -> None:
    """One of a few values."""
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        listed = " or ".join(repr(choice) for choice in choices)
        raise SettingError(f"{owner}({name}={value!r}) was given; {name} must be {listed}")
