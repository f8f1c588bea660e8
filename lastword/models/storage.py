"""Storage of keys and values between forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from lastword.canvas.columns import column_indices


class CacheStorage(ABC):
    """What a cache opens and `Forward` carries from pass to pass."""

    @abstractmethod
    def fit(self, width: int) -> None:
        """Follow a canvas that grew or shrank on the right."""

    @abstractmethod
    def at(self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor) -> RowStorage:
        """The part that belongs to some rows, for one pass over them.

        Masks are [R, L]: what every layer must recompute, what the pass will be asked for, the answer,
        and the columns that exist for this pass.
        """


class RowStorage(ABC):
    """Some rows of a memory during one pass: all that a model sees of a cache.

    A pass carries columns through the layers. Most memories carry the stale ones and recompute each
    of them in every layer. One that knows what a layer said last may carry more and let every layer
    choose: `part` says which columns, `filled` gives what the layer says about all of them.
    """

    carried: Tensor | None  # [R, S] sorted; None: every column
    # [R] columns recomputed in each row, the mean over layers rounded up. A model that needs more
    # columns than it was asked for says so here.
    computed: Tensor
    # Does every row carry as many columns as the widest, side by side? A short row else repeats its last.
    uniform: bool = False

    @abstractmethod
    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, H, S, D] at `columns` [R, S]; return those of all columns."""

    def part(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        """The columns [R, S] a layer with input `x` recomputes; None: all that are carried.

        `values` projects inputs [R, C, W] to the layer's values [R, H, C, D].
        """
        return None

    def filled(self, layer: int, half: str, columns: Tensor, fresh: Tensor) -> Tensor:
        """Keep what a half of the layer says at `columns`; return what it says everywhere."""
        raise NotImplementedError("only a memory that names a part can fill the rest")


class KVStorage(CacheStorage):
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
    ) -> RowKVStorage:
        if stale is None:
            return RowKVStorage(self, rows, None, torch.zeros_like(rows))
        # Only a column that is computed can be read.
        stale = stale if read is None else stale | read
        return RowKVStorage(self, rows, column_indices(stale), stale.sum(-1))

    def carrying(
        self,
        rows: Tensor,  # [R]
        columns: Tensor,  # [R, S]
        computed: Tensor | None = None,  # [R]
        own: slice | None = None,
    ) -> RowKVStorage:
        """Some rows in a pass over as many columns of each, side by side, of which some may be padding.

        `own` are those of the only row, where it carries all it has.
        """
        if computed is None:
            computed = torch.full_like(rows, columns.shape[1])
        return RowKVStorage(self, rows, columns, computed, uniform=True, own=own)

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


class RowKVStorage(RowStorage):
    """Some rows of a KeyValues."""

    def __init__(
        self,
        memory: KVStorage,
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

    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.base(keys.device)[:, None] + columns
        flat_keys, flat_values = self.store(layer, keys.shape[1], keys)
        flat_keys[slots], flat_values[slots] = keys.transpose(1, 2), values.transpose(1, 2)
        all_keys, all_values = self._memory.storage(layer, keys)
        rows = self._rows.to(keys.device)
        if len(rows) == len(all_keys):  # every row takes part: no copy
            return all_keys, all_values
        return all_keys[rows], all_values[rows]


class PooledKVStorage(KVStorage):
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
