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

Tree = TypeVar("Tree")  # a tensor, a tuple of them, or a dataclass that holds such


def tree_map(change: Callable[..., Tensor], rows: Tree, *others: Tree) -> Tree:
    """The same with every tensor changed, beside its like in the others; what is no tensor stays."""
    first: Any = rows
    if isinstance(first, Tensor):
        return change(first, *others)  # type: ignore[return-value]
    if isinstance(first, tuple):
        parts = [tree_map(change, *own) for own in zip(first, *others)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)  # type: ignore
    if is_dataclass(first) and not isinstance(first, (type, TokenIds)):
        names = [field.name for field in fields(first) if field.init]
        changed = {
            name: tree_map(change, *(getattr(own, name) for own in (first, *others))) for name in names
        }
        return replace(first, **changed)  # type: ignore[return-value]
    return rows


def tree_tensors(rows: object) -> Iterator[Tensor]:
    """Every tensor, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    tree_map(note, rows)
    return iter(found)


def tree_to(rows: Tree, device: torch.device) -> Tree:
    """The same on another device."""
    return tree_map(lambda tensor: tensor.to(device), rows)


def tree_where(taken: Tensor, new: Tree, old: Tree) -> Tree:
    """The new rows where `taken` [B] says so, else the old ones."""

    def pick(fresh: Tensor, kept: Tensor) -> Tensor:
        if fresh is kept:
            return kept
        return fresh.where(taken.view(-1, *[1] * (fresh.ndim - 1)), kept)

    return tree_map(pick, new, old)
