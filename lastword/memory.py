"""KeyValues: what attention already computed, by layer, row and column."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValues:
    """Keys and values [B, H, L, D] of every column of a canvas, one pair per layer.

    Keys are stored after rotation: a column's position within its row stays the same while the row
    keeps its window, and a row whose canvas changed recomputes all its columns.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def at(self, rows: Tensor) -> RowMemory:
        """The part of the memory that belongs to some rows: what a pass over them works on."""
        return RowMemory(self, rows)

    def fit(self, width: int) -> None:
        """Follow a canvas that grew or shrank on the right."""
        by = (0, 0, 0, width - self._width)  # a negative pad crops
        if by[-1]:
            self._layers = {
                layer: (torch.nn.functional.pad(keys, by), torch.nn.functional.pad(values, by))
                for layer, (keys, values) in self._layers.items()
            }
            self._width = width

    def storage(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's tensors, made on first use in the dtype and on the device of `like`."""
        if layer not in self._layers:
            shape = (self._rows, like.shape[1], self._width, like.shape[3])
            self._layers[layer] = (like.new_zeros(shape), like.new_zeros(shape))
        return self._layers[layer]


class RowMemory:
    """Some rows of a KeyValues, as a model sees them."""

    def __init__(self, memory: KeyValues, rows: Tensor) -> None:
        self._memory, self._rows = memory, rows

    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, H, S, D] at `columns` [R, S]; return those of all columns."""
        rows = self._rows.to(keys.device)
        heads = torch.arange(keys.shape[1], device=keys.device)
        where = (rows[:, None, None], heads[None, :, None], columns[:, None, :])
        all_keys, all_values = self._memory.storage(layer, keys)
        all_keys[where], all_values[where] = keys, values
        if len(rows) == len(all_keys):  # every row takes part: no copy
            return all_keys, all_values
        return all_keys[rows], all_values[rows]
