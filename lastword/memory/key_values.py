"""KeyValues: keys and values of every column, by layer."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from lastword.canvas.columns import columns_of
from lastword.memory.memory import Memory, RowMemory


class KeyValues(Memory):
    """Keys and values of every column of a canvas, a store [C, H, D] of each per layer.

    Column c of a row lies at `base[row] + c`. A store is made when its layer is first used and keeps its
    address until the canvas changes its width.

    Keys are stored after rotation. Positions count a row's own tokens from its first, so a prompt's
    never move; an answer whose tokens moved is recomputed, whatever the cache says (see Forward).
    """

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._base = torch.arange(rows) * width
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: dict[tuple[Hashable, ...], Tensor] = {}

    def at(
        self,
        rows: Tensor,
        stale: Tensor | None = None,
        read: Tensor | None = None,
        answer: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> RowKeyValues:
        if stale is None:
            return RowKeyValues(self, rows, None, torch.zeros_like(rows))
        # Only a column that is computed can be read.
        stale = stale if read is None else stale | read
        return RowKeyValues(self, rows, columns_of(stale), stale.sum(-1))

    def carrying(
        self,
        rows: Tensor,  # [R]
        columns: Tensor,  # [R, S]
        computed: Tensor | None = None,  # [R]
        own: slice | None = None,
    ) -> RowKeyValues:
        """Some rows in a pass over as many columns of each, side by side, of which some may be padding.

        `own` are those of the only row, where it carries all it has.
        """
        if computed is None:
            computed = torch.full_like(rows, columns.shape[1])
        return RowKeyValues(self, rows, columns, computed, uniform=True, own=own)

    def fit(self, width: int) -> None:
        by = (0, 0, 0, 0, 0, width - self._width)  # a negative pad crops
        if by[-1]:
            self._layers = {
                layer: (self._padded(keys, by), self._padded(values, by))
                for layer, (keys, values) in self._layers.items()
            }
            self._width = width
            self._base = torch.arange(self._rows, device=self._base.device) * width

    def base(self, device: torch.device) -> Tensor:  # [B]
        """Where in a store each row begins."""
        if self._base.device != device:
            self._base = self._base.to(device)
        return self._base

    def steps(
        self, count: int, step: int, like: Tensor, dtype: torch.dtype = torch.long, first: int = 0
    ) -> Tensor:
        """Numbers at equal distances on the device of `like`, made once: captured passes read them there."""
        key = (count, step, like.device, dtype, first)
        if key not in self._steps:
            end = first + count * step
            self._steps[key] = torch.arange(first, end, step, dtype=dtype, device=like.device)
        return self._steps[key]

    def store(self, layer: int, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [C, H, D], in the dtype and on the device of `like` [..., D]."""
        if layer not in self._layers:
            shape = (self.size(), heads, like.shape[-1])
            self._layers[layer] = (like.new_zeros(shape), like.new_zeros(shape))
        return self._layers[layer]

    def size(self) -> int:
        """Columns of a store."""
        return self._rows * self._width

    def storage(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The same by row and head, [B, H, L, D]: views, for `like` of that shape."""
        keys, values = self.store(layer, like.shape[1], like)
        return self._by_row(keys).transpose(1, 2), self._by_row(values).transpose(1, 2)

    def _by_row(self, kept: Tensor) -> Tensor:  # [C, H, D] -> [B, L, H, D]
        return kept.view(self._rows, self._width, *kept.shape[1:])

    def _padded(self, kept: Tensor, by: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.pad(self._by_row(kept), by).flatten(0, 1)


class RowKeyValues(RowMemory):
    """Some rows of a KeyValues."""

    def __init__(
        self,
        memory: KeyValues,
        rows: Tensor,
        carried: Tensor | None,
        computed: Tensor,
        *,
        uniform: bool = False,
        own: slice | None = None,
    ) -> None:
        self._memory, self._rows, self.steps = memory, rows, memory.steps
        self.carried, self.computed, self.uniform, self.own = carried, computed, uniform, own

    def base(self, device: torch.device) -> Tensor:  # [R]
        """Where in a layer's store each of the rows begins."""
        every = self._memory.base(device)
        return every if len(every) == len(self._rows) else every[self._rows.to(device)]

    def store(self, layer: int, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values [C, H, D], of all rows."""
        return self._memory.store(layer, heads, like)

    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        slots = self.base(keys.device)[:, None] + columns
        flat_keys, flat_values = self.store(layer, keys.shape[1], keys)
        flat_keys[slots], flat_values[slots] = keys.transpose(1, 2), values.transpose(1, 2)
        all_keys, all_values = self._memory.storage(layer, keys)
        rows = self._rows.to(keys.device)
        if len(rows) == len(all_keys):  # every row takes part: no copy
            return all_keys, all_values
        return all_keys[rows], all_values[rows]
