"""PooledKeyValues: keys and values of rows that each reserve as many columns as they are likely to need."""

from __future__ import annotations

import torch
from torch import Tensor

from lastword.memory.key_values import KeyValues


class PooledKeyValues(KeyValues):
    """A KeyValues whose rows lie in regions of one store, instead of as far apart as the widest could be.

    A row that outgrows its region moves to a larger one; where none is free, the others close up, and
    where that is not enough, the store grows. A row without a region lies behind the pool, where what it
    writes harms nobody.
    """

    def __init__(self, rows: int, width: int, columns: int) -> None:
        super().__init__(rows, width)
        self._columns = columns
        self._regions: dict[int, range] = {}  # by row
        self._owners: dict[int, object] = {}
        self._base = torch.full((rows,), columns)
        self.grown = 0  # times that the store got another address

    def fit(self, width: int) -> None:
        assert width == self._width, "a canvas whose rows have regions keeps its width"

    def size(self) -> int:
        return self._columns + self._width

    def lend(self, row: int, first: int, count: int, *, to: object) -> None:
        """Let a row have a region for `count` columns from `first` on; what it has already moves with it.

        `to` says who the row is: another one begins anew.
        """
        if self._owners.get(row) is not to:
            self.end(row)
            self._owners[row] = to
        old = self._regions.get(row)
        if old is not None and len(old) >= count:
            return
        start = self._free(count)
        if start is None:
            self._close_up()
            start, old = self._free(count), self._regions.get(row)
        if start is None:
            self._grow(count)
            start = self._free(count)
            assert start is not None
        if old is not None:
            self._move(old, start)
        self._regions[row] = range(start, start + count)
        self._base[row] = start - first

    def end(self, row: int) -> None:
        """Take its region back."""
        if self._regions.pop(row, None) is not None:
            self._base[row] = self._columns

    def storage(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.store(layer, like.shape[1], like)
        every = torch.arange(self._width, device=like.device)
        # Columns before a row's first lie before its region, where they may be anybody's: nobody reads them.
        at = (self.base(like.device)[:, None] + every).clamp(0, len(keys) - 1)
        return keys[at].transpose(1, 2), values[at].transpose(1, 2)

    def _free(self, count: int) -> int | None:
        """Where so many columns are free side by side, from the left."""
        start = 0
        for taken in sorted(self._regions.values(), key=lambda region: region.start):
            if taken.start - start >= count:
                return start
            start = taken.stop
        return start if self._columns - start >= count else None

    def _close_up(self) -> None:
        start = 0
        for row, region in sorted(self._regions.items(), key=lambda own: own[1].start):
            if region.start > start:
                self._move(region, start)
                self._base[row] -= region.start - start
                self._regions[row] = range(start, start + len(region))
            start += len(region)

    def _move(self, region: range, start: int) -> None:
        old, new = slice(region.start, region.stop), slice(start, start + len(region))
        for stores in self._layers.values():
            for store in stores:
                store[new] = store[old].clone()

    def _grow(self, count: int) -> None:
        """More columns, and the rows without a region behind them."""
        more = max(count, self._columns // 4)
        without = self._base == self._columns
        self._columns += more
        self._base[without] = self._columns
        pad = (0, 0, 0, 0, 0, more)
        self._layers = {
            layer: (torch.nn.functional.pad(keys, pad), torch.nn.functional.pad(values, pad))
            for layer, (keys, values) in self._layers.items()
        }
        self.grown += 1
