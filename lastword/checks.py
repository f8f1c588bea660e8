"""Checks a setting makes of itself when it is made, so that no loop has to."""

from __future__ import annotations

import math
from typing import Any

from lastword.errors import SettingError


def check_whole(name: str, value: Any, *, least: int) -> None:
    """A whole number, at least `least`. True and 2.0 are not whole numbers here."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(
            f"{name}={value!r} was given; it must be a whole number, {least} or more"
        )


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
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
        raise SettingError(f"{name}={value!r} was given; it must be a number {asked}".rstrip())


def check_choice(name: str, value: Any, *choices: str) -> None:
    """One of a few words."""
    if value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise SettingError(f"{name}={value!r} was given; it must be {listed}")
