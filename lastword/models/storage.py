"""Storage of keys, values and layer outputs between forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.canvas.columns import cached_arange, column_indices

MIN_DISTANCE = 1e-5  # of unit vectors; smaller distances may be rounding errors of float32


class CacheStorage(ABC):
    """The tensors that a cache keeps between the forward passes of a batch."""

    @abstractmethod
    def fit(self, width: int) -> None:
        """Add or remove columns on the right so that every row has the new width of the canvas."""

    @abstractmethod
    def at(self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor) -> RowStorage:
        """Return the storage of rows `rows` [R] for one pass.

        The other arguments are boolean masks [R, L]: `stale` columns, which every layer must recompute, columns that
        the pass reads, answer columns, and visible columns (`valid`).
        """


class RowStorage(ABC):
    """The storage of some rows during one pass: the only part of a cache that is passed to a model.

    By default the input of the layers is the stale columns, and every layer recomputes all of them. A storage that
    keeps layer outputs (`RowFeatureStorage`) may use more input columns and choose some of them per layer: `select`
    returns the columns to recompute; `fill` stores their outputs and returns those of all columns.
    """

    columns: Tensor | None  # [R, S] sorted, the input columns of the layers; None: all
    # [R] columns recomputed per row, the mean over layers rounded up. A model that computes more columns than
    # requested adds them (see `native._columns_before`).
    tokens_computed: Tensor
    # Whether all rows have the same number of distinct columns; otherwise shorter rows repeat their last column.
    uniform: bool = False

    @abstractmethod
    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, H, S, D] at `columns` [R, S]; return those of all columns [R, H, L, D]."""

    def select(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return the columns [R, S] that a layer with input `x` recomputes; None means all of `self.columns`.

        `values` projects inputs [R, C, W] to the layer's values [R, H, C, D].
        """
        return None

    def fill(self, layer: int, half: str, columns: Tensor, output: Tensor) -> Tensor:
        """Store the output of `half` (`attention` or `mlp`) at `columns`; return the stored output of all columns."""
        raise NotImplementedError("only a storage that selects columns can fill in the others")


class KVStorage(CacheStorage):
    """The keys and values [C, H, D] of all columns of a canvas, in one tensor per layer; C is rows times width.

    Column c of a row has index `offsets[row] + c`. The tensor of a layer is allocated on first use and keeps its
    address until the width of the canvas changes.

    Keys are stored after the rotary embedding. Positions count from the first token of the row, so those of the prompt
    never change; if tokens of an answer move, `Forward` recomputes the answer, whatever the cache policy chooses.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._offsets = torch.arange(rows) * width
        self._layers: dict[int, Tensor] = {}  # by layer, [2, C, H, D]
        self._ranges: dict[tuple[Hashable, ...], Tensor] = {}

    def at(self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor) -> RowKVStorage:
        stale = stale | read  # a column must be computed to be read
        return RowKVStorage(self, rows, column_indices(stale), stale.sum(-1))

    def fit(self, width: int) -> None:
        if width != self._width:
            padding = (0, 0, 0, 0, 0, width - self._width)  # a negative number crops
            for layer, stored in self._layers.items():
                self._layers[layer] = F.pad(self._split_rows(stored), padding).flatten(1, 2)
            self._width = width
            self._offsets = torch.arange(self._rows, device=self._offsets.device) * width

    def offsets(self, device: torch.device) -> Tensor:  # [B]
        """Return the index of column 0 of every row in the tensors of a layer."""
        if self._offsets.device != device:
            self._offsets = self._offsets.to(device)
        return self._offsets

    def arange(self, count: int, step: int, like: Tensor, dtype: torch.dtype = torch.long, start: int = 0) -> Tensor:
        """Return `count` numbers from `start` in steps of `step`; cached, because CUDA graphs need a fixed address."""
        key = (count, step, like.device, dtype, start)
        if key not in self._ranges:
            end = start + count * step
            self._ranges[key] = torch.arange(start, end, step, dtype=dtype, device=like.device)
        return self._ranges[key]

    def layer(self, layer: int, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values [C, H, D], in the dtype and on the device of `like` [..., D]."""
        stored = self._stored(layer, heads, like)
        return stored[0], stored[1]

    def _stored(self, layer: int, heads: int, like: Tensor) -> Tensor:  # [2, C, H, D]
        if layer not in self._layers:
            self._layers[layer] = like.new_zeros(2, self.size(), heads, like.shape[-1])
        return self._layers[layer]

    def size(self) -> int:
        """Return the number of columns in the tensors of a layer."""
        return self._rows * self._width

    def by_row(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values as views [B, H, L, D]; `like` [R, H, S, D] gives H, D, dtype and device."""
        views = self._split_rows(self._stored(layer, like.shape[1], like)).transpose(2, 3)
        return views[0], views[1]

    def _split_rows(self, stored: Tensor) -> Tensor:  # [2, C, H, D] -> [2, B, L, H, D]
        return stored.view(2, self._rows, self._width, *stored.shape[2:])


@dataclass(eq=False)
class RowKVStorage(RowStorage):
    """The part of a `KVStorage` that belongs to some rows.

    In a `uniform` pass every row has the same number of adjacent columns, of which some may be padding.
    """

    all_rows: KVStorage
    rows: Tensor  # [R]
    columns: Tensor | None
    tokens_computed: Tensor  # [R]
    uniform: bool = False
    span: slice | None = None  # the indices of the keys of a single row, if known without a host sync

    def offsets(self, device: torch.device) -> Tensor:  # [R]
        """Return the index of column 0 of each of these rows in the tensors of a layer."""
        offsets = self.all_rows.offsets(device)
        return offsets if len(offsets) == len(self.rows) else offsets[self.rows.to(device)]

    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.offsets(keys.device)[:, None] + columns
        flat_keys, flat_values = self.all_rows.layer(layer, keys.shape[1], keys)
        flat_keys[slots], flat_values[slots] = keys.transpose(1, 2), values.transpose(1, 2)
        all_keys, all_values = self.all_rows.by_row(layer, keys)
        if len(self.rows) == len(all_keys):  # every row participates: no copy
            return all_keys, all_values
        rows = self.rows.to(keys.device)
        return all_keys[rows], all_values[rows]


class PooledKVStorage(KVStorage):
    """The keys and values of a pool of columns, in which each row reserves a region of the size that it needs.

    A row that outgrows its region moves to a larger one. If no gap is large enough, the regions are compacted, and if
    that does not free enough columns, the pool grows. All rows without a region share scratch columns after the pool.
    """

    def __init__(self, rows: int, width: int, columns: int) -> None:
        super().__init__(rows, width)
        self._columns = columns
        self._regions: dict[int, range] = {}  # by row
        self._owners: dict[int, object] = {}
        self._offsets = torch.full((rows,), columns)
        self.times_grown = 0  # growing moves the tensors, so captured CUDA graphs become invalid

    def fit(self, width: int) -> None:
        if width != self._width:
            raise ValueError(f"a pool for canvases of {self._width} columns cannot hold one of {width}")

    def size(self) -> int:
        return self._columns + self._width

    def reserve(self, row: int, first: int, count: int, *, owner: object) -> None:
        """Reserve a region for `count` columns of a row from column `first` on, and keep what is stored for them.

        `owner` is the request in the row; if it is a new one, the old region is released first.
        """
        if self._owners.get(row) is not owner:
            self.release(row)
            self._owners[row] = owner
        region = self._regions.get(row)
        if region is not None and len(region) >= count:
            return
        start = self._find_free(count)
        if start is None:
            start = self._compact()
            if self._columns - start < count:
                self._grow(max(count, self._columns // 4))
        region = self._regions.get(row)  # compacting may have moved it
        if region is not None:
            self._move(region, start)
        self._regions[row] = range(start, start + count)
        self._offsets[row] = start - first

    def release(self, row: int) -> None:
        """Free the region of a row, if the row has one."""
        if self._regions.pop(row, None) is not None:
            self._offsets[row] = self._columns

    def by_row(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.layer(layer, like.shape[1], like)
        column = torch.arange(self._width, device=like.device)
        # The padding before a row's prompt gets indices outside of the row's region; these entries are not read.
        slots = (self.offsets(like.device)[:, None] + column).clamp(0, len(keys) - 1)
        return keys[slots].transpose(1, 2), values[slots].transpose(1, 2)

    def _find_free(self, count: int) -> int | None:
        start = 0
        for region in sorted(self._regions.values(), key=lambda region: region.start):
            if region.start - start >= count:
                return start
            start = region.stop
        return start if self._columns - start >= count else None

    def _compact(self) -> int:
        """Close all gaps between regions and return the end of the last region."""
        start = 0
        for row, region in sorted(self._regions.items(), key=lambda item: item[1].start):
            if region.start > start:
                self._move(region, start)
                self._offsets[row] -= region.start - start
                self._regions[row] = range(start, start + len(region))
            start += len(region)
        return start

    def _move(self, region: range, start: int) -> None:
        for stored in self._layers.values():
            stored[:, start : start + len(region)] = stored[:, region.start : region.stop].clone()

    def _grow(self, added: int) -> None:
        for layer, stored in self._layers.items():
            self._layers[layer] = F.pad(stored, (0, 0, 0, 0, 0, added))
        without_region = self._offsets == self._columns
        self._columns += added
        self._offsets[without_region] = self._columns
        self.times_grown += 1


class FeatureStorage(CacheStorage):
    """The keys, values, attention outputs and MLP outputs of all columns in every layer (dLLM-Cache).

    All columns are input of the layers. The first layer recomputes all of them. Every other layer recomputes the stale
    columns and those answer columns whose values changed most, as many as `share` times the length of the answer.
    """

    def __init__(self, rows: int, width: int, share: float) -> None:
        self.attention = KVStorage(rows, width)
        self.share = share
        self._rows, self._width = rows, width
        self._outputs: dict[tuple[int, str], Tensor] = {}

    def at(self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor) -> RowFeatureStorage:
        return RowFeatureStorage(self, rows, stale, answer & valid, valid)

    def fit(self, width: int) -> None:
        self.attention.fit(width)
        padding = (0, 0, 0, width - self._width)
        if padding[-1]:
            self._outputs = {name: F.pad(output, padding) for name, output in self._outputs.items()}
            self._width = width

    def outputs(self, layer: int, half: str, like: Tensor) -> Tensor:
        """Return the outputs [B, L, W] of a layer's `half` (`attention` or `mlp`), allocated on first use."""
        if (layer, half) not in self._outputs:
            shape = (self._rows, self._width, like.shape[-1])
            self._outputs[layer, half] = like.new_zeros(shape)
        return self._outputs[layer, half]


class RowFeatureStorage(RowStorage):
    """The keys, values and layer outputs of some rows in one pass; `select` returns the columns to recompute."""

    def __init__(self, storage: FeatureStorage, rows: Tensor, stale: Tensor, answer: Tensor, valid: Tensor) -> None:
        optional = answer & ~stale
        # In float64, as in Python: int(0.29 * 100) is 28, but in float32 it is 29.
        chosen = (answer.sum(-1).double() * storage.share).long()
        self._storage = storage
        self._counts = stale.sum(-1) + torch.minimum(chosen, optional.sum(-1))
        self._selects = storage.share > 0 and bool(optional.any())
        self._first = int(optional.any(0).to(torch.int8).argmax())  # the first optional column of any row
        self._total, self._layers = valid.sum(-1), 1  # columns and layers so far; layer 0 recomputes all
        self.columns, self.tokens_computed = None, self._total
        # `select` moves the following tensors to the device of the layer.
        self._rows, self._stale, self._optional = rows, stale, optional[:, self._first :]
        self._stale_columns = column_indices(stale)
        entry = cached_arange(int(self._counts.max()), rows.device).expand(len(rows), -1)
        self._entries = torch.minimum(entry, (self._counts - 1).clamp(min=0)[:, None])
        # Rows without columns to recompute must not be overwritten.
        busy = self._counts > 0
        self._busy = None if bool(busy.all()) else busy.nonzero()[:, 0]

    def select(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        if layer == 0:
            return None
        self._move(x.device)
        self._total, self._layers = self._total + self._counts, self._layers + 1
        self.tokens_computed = -(-self._total // self._layers)  # rounded up
        if not self._selects:
            return self._stale_columns
        # Stale columns come first, then the most changed ones; ties are resolved from left to right.
        change = self._update_values(layer, x, values).masked_fill(self._stale, torch.inf)
        return change.argsort(dim=-1, descending=True, stable=True).gather(1, self._entries)

    def _update_values(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:  # [R, L]
        """Store the values of the answer columns that are not stale; return the change of each, -1 elsewhere.

        The change is the squared distance of unit vectors, 2 - 2 cosine computed without cancellation. Changes
        within rounding error count as 0: rounding depends on the shape of the batch, and a row must select the same
        columns in a batch as alone.
        """
        new = values(x[:, self._first :])  # [R, H, C, D]
        _, stored = self._storage.attention.by_row(layer, new)
        old = stored[self._rows, :, self._first :]
        stored[self._rows, :, self._first :] = torch.where(self._optional[:, None, :, None], new, old)
        change = (_directions(new) - _directions(old)).square().sum(-1)
        rounding = max(MIN_DISTANCE, torch.finfo(new.dtype).eps)
        change = change.masked_fill(change < rounding**2, 0)
        return F.pad(change.masked_fill(~self._optional, -1.0), (self._first, 0), value=-1.0)

    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer == 0:  # which recomputes all columns
            return keys, values
        heads = torch.arange(keys.shape[1], device=keys.device)[None, :, None]
        all_keys, all_values = self._storage.attention.by_row(layer, keys)
        rows, columns, keys, values = self._busy_only(self._rows, columns, keys, values)
        where = (rows[:, None, None], heads, columns[:, None, :])
        all_keys[where], all_values[where] = keys, values
        return self._of_rows(all_keys), self._of_rows(all_values)

    def fill(self, layer: int, half: str, columns: Tensor, output: Tensor) -> Tensor:
        stored = self._storage.outputs(layer, half, output)
        rows, columns, output = self._busy_only(self._rows, columns, output)
        stored[rows[:, None], columns] = output
        return self._of_rows(stored)

    def _busy_only(self, *tensors: Tensor) -> Sequence[Tensor]:
        return tensors if self._busy is None else [tensor[self._busy] for tensor in tensors]

    def _of_rows(self, stored: Tensor) -> Tensor:
        return stored if len(self._rows) == len(stored) else stored[self._rows]

    def _move(self, device: torch.device) -> None:
        if self._rows.device != device:
            self._rows, self._stale = self._rows.to(device), self._stale.to(device)
            self._optional, self._entries = self._optional.to(device), self._entries.to(device)
            self._stale_columns = self._stale_columns.to(device)
            self._busy = None if self._busy is None else self._busy.to(device)


def _directions(values: Tensor) -> Tensor:  # [R, H, C, D] -> [R, C, H * D]
    """Return the values of each column, all heads together, as a unit vector in float32 or float64."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return F.normalize(values.transpose(1, 2).flatten(2).to(wide), dim=-1)
