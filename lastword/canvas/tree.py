"""Map functions over nested tensors that share a leading row axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from lastword.canvas.tokens import TokenIds

# A NamedTuple of tensors whose first axis is the rows, so that rows can be taken and replaced; or ().
State = tuple[Tensor, ...]

Rows = TypeVar("Rows")  # a tensor, a tuple of them, or a dataclass that holds such


def each(change: Callable[..., Tensor], rows: Rows, *others: Rows) -> Rows:
    """The same with every tensor changed, beside its like in the others; what is no tensor stays."""
    first: Any = rows
    if isinstance(first, Tensor):
        return change(first, *others)  # type: ignore[return-value]
    if isinstance(first, tuple):
        parts = [each(change, *own) for own in zip(first, *others)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)  # type: ignore
    if is_dataclass(first) and not isinstance(first, (type, TokenIds)):
        names = [field.name for field in fields(first) if field.init]
        changed = {
            name: each(change, *(getattr(own, name) for own in (first, *others))) for name in names
        }
        return replace(first, **changed)  # type: ignore[return-value]
    return rows


def tensors(rows: object) -> Iterator[Tensor]:
    """Every tensor, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each(note, rows)
    return iter(found)


def on_device(rows: Rows, device: torch.device) -> Rows:
    """The same on another device."""
    return each(lambda tensor: tensor.to(device), rows)


def merged(taken: Tensor, new: Rows, old: Rows) -> Rows:
    """The new rows where `taken` [B] says so, else the old ones."""

    def pick(fresh: Tensor, kept: Tensor) -> Tensor:
        if fresh is kept:
            return kept
        return fresh.where(taken.view(-1, *[1] * (fresh.ndim - 1)), kept)

    return each(pick, new, old)
