"""Numbers of slots that may be left unsaid until a recipe is settled for a model."""

from __future__ import annotations

from lastword.checks import check_whole
from lastword.errors import SettingError


def check_said(owner: str, name: str, value: int | None) -> None:
    """None, which leaves it to the model, or a whole number, 1 or more."""
    if value is not None:
        check_whole(owner, name, value, least=1)


def said(policy: object, value: int | None) -> int:
    """A number that settling has filled in by now."""
    if value is None:
        raise SettingError(
            f"{policy!r} was asked for a plan before it was settled for a model: decode with it in a Recipe, "
            "or give it a number of slots"
        )
    return value
