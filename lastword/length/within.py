"""Within: a length policy for a model, or for the room behind a prompt, that is smaller than it asks for."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from lastword.length.policy import LengthPolicy

SLOTS = ("slots", "limit", "initial")  # the settings of length policies that count slots

Policy = TypeVar("Policy", bound=LengthPolicy)


def within(policy: Policy, slots: int, *, where_unsaid: bool = False) -> Policy:
    """The same policy, and the policies it wraps, on at most so many slots.

    With `where_unsaid`, only where a number was left as it comes: what somebody chose is theirs.
    """
    changed: dict[str, object] = {}
    for field in fields(policy):  # type: ignore[arg-type]  # every policy is a dataclass
        value = getattr(policy, field.name)
        if isinstance(value, LengthPolicy):
            changed[field.name] = within(value, slots, where_unsaid=where_unsaid)
        elif field.name in SLOTS and value is not None and value > slots:
            changed[field.name] = value if where_unsaid and value != field.default else slots
    return replace(policy, **changed)  # type: ignore[type-var]
