"""Sets of canvas columns: boolean masks [B, L], sorted indices [B, S] and spans per row."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns that a forward pass read in each row, from left to right.

    All rows have S entries, as many as the row with the most columns. `read` is False where a row with fewer columns
    repeats its last one, and in rows that did not participate. Static columns have a fixed number of distinct entries,
    and `read` is False at those that were not requested.
    """

    index: Int[Tensor, "B S"]
    read: Bool[Tensor, "B S"]
    width: int  # of the canvas
    static: bool = False

    @classmethod
    def from_mask(cls, chosen: Bool[Tensor, "B L"]) -> Columns:
        """Return the chosen columns, with as many entries per row as the row with the most chosen columns."""
        index = column_indices(chosen)
        entry = cached_arange(index.shape[1], index.device)
        return cls(index, entry < chosen.sum(-1, keepdim=True), chosen.shape[1])

    @classmethod
    def from_window(cls, first: Int[Tensor, "B"], count: int, chosen: Bool[Tensor, "B L"]) -> Columns:
        """Return static columns: `count` adjacent ones per row from `first` on; only chosen ones are read."""
        width = chosen.shape[1]
        index = first.clamp(max=width - count)[:, None] + cached_arange(count, first.device)
        return cls(index, chosen.gather(1, index), width, static=True)

    @cached_property
    def participates(self) -> Bool[Tensor, "B"]:
        """The rows in which any column was read, as booleans."""
        return self.read.any(-1)

    @cached_property
    def rows(self) -> Int[Tensor, "A"]:
        """The indices of the rows that were computed: the participating ones, or all rows in a static pass."""
        if self.static:
            return cached_arange(len(self.index), self.index.device)
        return self.participates.nonzero()[:, 0]

    def gather(self, values: Tensor) -> Tensor:  # [B, L] -> [B, S]
        """Return the values at the columns of `index`; booleans are False at entries that were not read."""
        picked = values.gather(1, self.index)
        return picked & self.read if values.dtype == torch.bool else picked

    def scatter(self, values: Tensor, fill: bool | int | float = False) -> Tensor:  # [B, S] -> [B, L]
        """Return a canvas-wide tensor with the values at the columns that were read and `fill` elsewhere."""
        out = torch.full((len(values), self.width), fill, dtype=values.dtype, device=values.device)
        if self.static:
            return out.scatter(1, self.index, values.where(self.read, fill))
        # An entry that repeats a column writes the same value as the first entry of that column.
        return out.scatter(1, self.index, values.gather(1, self._first_entry))

    @cached_property
    def _first_entry(self) -> Int[Tensor, "B S"]:
        entry = cached_arange(self.index.shape[1], self.index.device)
        return torch.minimum(entry, (self.read.sum(-1, keepdim=True) - 1).clamp(min=0))


@dataclass(frozen=True, eq=False)
class Window:
    """A span of columns per row, [first, last); empty for a row that is finished."""

    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]
    _masks: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)  # by canvas width

    def columns(self, width: int) -> Bool[Tensor, "B L"]:
        """Return the window as booleans per column; cached, because several parts need them in every pass."""
        if width not in self._masks:
            column = cached_arange(width, self.first.device)
            self._masks[width] = (column >= self.first[:, None]) & (column < self.last[:, None])
        return self._masks[width]


def column_indices(chosen: Tensor) -> Tensor:  # bool [B, L] -> [B, R]
    """Return the sorted indices of each row's true columns; rows with fewer of them repeat the last one.

    A repeated column is computed and written twice with the same value, which does no harm.
    """
    counts = chosen.sum(-1)
    widest = int(counts.max()) if counts.numel() else 0
    row, column = chosen.nonzero(as_tuple=True)
    index = torch.zeros(len(chosen), widest, dtype=torch.long, device=chosen.device)
    index[row, chosen.cumsum(-1)[row, column] - 1] = column
    last = (counts - 1).clamp(min=0)[:, None]
    entry = cached_arange(widest, chosen.device).expand(len(chosen), -1)
    return index.gather(1, torch.minimum(entry, last))


def pack_indices(chosen: Tensor, capacity: int) -> tuple[Tensor, Tensor]:  # bool [N] -> [N], [capacity]
    """Return every entry's rank among the chosen ones, and the chosen indices, without a host synchronisation.

    At most `capacity` entries may be chosen. An entry that is not chosen gets the rank of the previous chosen
    entry, and unused capacity holds index 0.
    """
    rank = chosen.cumsum(0) - 1
    at = torch.where(chosen, rank, capacity).clamp(max=capacity)
    picked = torch.zeros(capacity + 1, dtype=torch.long, device=chosen.device)
    return rank.clamp(min=0), picked.scatter(0, at, cached_arange(len(chosen), chosen.device))[:capacity]


@lru_cache(maxsize=256)
def cached_arange(count: int, device: torch.device) -> Int[Tensor, "N"]:
    """Return the numbers from 0 to `count` - 1 as a cached tensor, which must not be modified."""
    return torch.arange(count, device=device)


def first_true(chosen: Tensor) -> Tensor:  # bool [B, N] -> [B]
    """Return the index of each row's first true entry, or N without one; `argmax` might return a later one."""
    count = chosen.shape[-1]
    return torch.where(chosen, cached_arange(count, chosen.device), count).amin(-1)


def locate(columns: Tensor, wanted: Tensor) -> Tensor:  # [B, R], [B, S] -> [B, S]
    """Return the position of each wanted column in the sorted `columns` of its row."""
    return torch.searchsorted(columns.contiguous(), wanted.contiguous())
