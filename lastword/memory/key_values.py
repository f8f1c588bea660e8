"""KeyValues: keys and values of every column, by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from lastword.canvas.columns import columns_of
from lastword.memory.memory import Memory, RowMemory


class KeyValues(Memory):
    """Keys and values [B, H, L, D] of every column of a canvas, one pair per layer.

    Keys are stored after rotation. Positions count a row's own tokens from its first, so a prompt's
    never move; an answer whose tokens moved is recomputed, whatever the cache says (see Forward).
    """

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def at(
        self,
        rows: Tensor,
        stale: Tensor | None = None,
        read: Tensor | None = None,
        answer: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> RowKeyValues:
        # Only a column that is computed can be read.
        return RowKeyValues(self, rows, stale if stale is None or read is None else stale | read)

    def fit(self, width: int) -> None:
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


class RowKeyValues(RowMemory):
    """Some rows of a KeyValues."""

    def __init__(self, memory: KeyValues, rows: Tensor, stale: Tensor | None = None) -> None:
        self._memory, self._rows = memory, rows
        self.carried = None if stale is None else columns_of(stale)
        self.computed = torch.zeros_like(rows) if stale is None else stale.sum(-1)

    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._rows.to(keys.device)
        heads = torch.arange(keys.shape[1], device=keys.device)
        where = (rows[:, None, None], heads[None, :, None], columns[:, None, :])
        all_keys, all_values = self._memory.storage(layer, keys)
        all_keys[where], all_values[where] = keys, values
        if len(rows) == len(all_keys):  # every row takes part: no copy
            return all_keys, all_values
        return all_keys[rows], all_values[rows]
