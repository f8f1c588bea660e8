"""Map functions over nested tensors that share a leading row axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from lastword.canvas.tokens import TokenIds

# The state of a part from step to step: a NamedTuple of tensors whose first axis is the rows, or ().
State = tuple[Tensor, ...]

Tree = TypeVar("Tree")  # a tensor, a tuple of trees, or a dataclass that holds trees


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Return the tree with the function applied to every tensor and its counterparts in `others`."""
    first: Any = tree
    if isinstance(first, Tensor):
        return function(first, *others)  # type: ignore[return-value]
    if isinstance(first, tuple):
        parts = [tree_map(function, *leaves) for leaves in zip(first, *others)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)  # type: ignore
    if is_dataclass(first) and not isinstance(first, (type, TokenIds)):
        names = [field.name for field in fields(first) if field.init]
        changed = {name: tree_map(function, *(getattr(leaf, name) for leaf in (first, *others))) for name in names}
        return replace(first, **changed)  # type: ignore[return-value]
    return tree


def tree_tensors(tree: object) -> Iterator[Tensor]:
    """Iterate over every tensor of a tree, in order."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    tree_map(collect, tree)
    return iter(tensors)


def tree_to(tree: Tree, device: torch.device) -> Tree:
    """Return the tree on another device."""
    return tree_map(lambda tensor: tensor.to(device), tree)


def tree_where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    """Return the rows of `new` where `condition` [B] holds and those of `old` elsewhere."""

    def pick(fresh: Tensor, kept: Tensor) -> Tensor:
        if fresh is kept:
            return kept
        return fresh.where(condition.view(-1, *[1] * (fresh.ndim - 1)), kept)

    return tree_map(pick, new, old)
