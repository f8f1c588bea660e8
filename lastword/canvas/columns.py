"""Sets of canvas columns: boolean masks [B, L], sorted indices [B, S] and spans per row."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns a pass read in each row, from left to right; views of the pass are [B, S] like `index`.

    All rows have as many as the widest. `read` is False where a shorter row repeats its last column, and
    in a row that took no part. Columns of a window (`within`) have a fixed number of entries, none twice,
    and `read` is False at those that nobody asked for.
    """

    index: Int[Tensor, "B S"]
    read: Bool[Tensor, "B S"]
    width: int  # of the canvas
    static: bool = False

    @classmethod
    def from_mask(cls, chosen: Bool[Tensor, "B L"]) -> Columns:
        index = column_indices(chosen)
        entry = cached_arange(index.shape[1], index.device)
        return cls(index, entry < chosen.sum(-1, keepdim=True), chosen.shape[1])

    @classmethod
    def from_window(cls, first: Int[Tensor, "B"], count: int, chosen: Bool[Tensor, "B L"]) -> Columns:
        """`count` columns from `first` on in each row, of which the chosen ones are read."""
        width = chosen.shape[1]
        index = first.clamp(max=width - count)[:, None] + cached_arange(count, first.device)
        return cls(index, chosen.gather(1, index), width, static=True)

    @cached_property
    def participates(self) -> Bool[Tensor, "B"]:
        """Of which rows anything was read."""
        return self.read.any(-1)

    @cached_property
    def rows(self) -> Int[Tensor, "A"]:
        """The rows that were computed: those that took part, or all where shapes are fixed."""
        if self.static:
            return cached_arange(len(self.index), self.index.device)
        return self.participates.nonzero()[:, 0]

    def gather(self, values: Tensor) -> Tensor:  # [B, L] -> [B, S]
        """Of every column of a canvas, those that were read. A mask is False where nothing was."""
        picked = values.gather(1, self.index)
        return picked & self.read if values.dtype == torch.bool else picked

    def scatter(self, values: Tensor, fill: bool | int | float = False) -> Tensor:  # -> [B, L]
        """Values [B, S] at their columns of a canvas, `nothing` at the others."""
        spread = torch.full((len(values), self.width), fill, dtype=values.dtype, device=values.device)
        if self.static:
            return spread.scatter(1, self.index, values.where(self.read, fill))
        # A column that is repeated is written once more with the value of its first.
        return spread.scatter(1, self.index, values.gather(1, self._first))

    @cached_property
    def _first(self) -> Int[Tensor, "B S"]:
        entry = cached_arange(self.index.shape[1], self.index.device)
        return torch.minimum(entry, (self.read.sum(-1, keepdim=True) - 1).clamp(min=0))


def column_indices(chosen: Tensor) -> Tensor:  # bool [B, L] -> [B, R]
    """The true columns of each row in order; short rows repeat their last column.

    A repeated column is computed twice and written twice with the same value, so it does no harm.
    """
    counts = chosen.sum(-1)
    widest = int(counts.max()) if counts.numel() else 0
    row, column = chosen.nonzero(as_tuple=True)
    found = torch.zeros(len(chosen), widest, dtype=torch.long, device=chosen.device)
    found[row, chosen.cumsum(-1)[row, column] - 1] = column
    last = (counts - 1).clamp(min=0)[:, None]
    entry = cached_arange(widest, chosen.device).expand(len(chosen), -1)
    return found.gather(1, torch.minimum(entry, last))


def pack_indices(chosen: Tensor, capacity: int) -> tuple[Tensor, Tensor]:  # bool [N] -> [N], [most]
    """Where each of the chosen stands among them, and which those are; nothing is asked of the device.

    There are no more than `most`. What is not chosen stands where the chosen one before it does, and what
    is left of the `most` repeats the first.
    """
    packed = chosen.cumsum(0) - 1
    at = torch.where(chosen, packed, capacity).clamp(max=capacity)
    picked = torch.zeros(capacity + 1, dtype=torch.long, device=chosen.device)
    return packed.clamp(min=0), picked.scatter(0, at, cached_arange(len(chosen), chosen.device))[:capacity]


@lru_cache(maxsize=256)
def cached_arange(count: int, device: torch.device) -> Int[Tensor, "N"]:
    """0, 1, ... `count` - 1; asked for many times in every pass, so it is kept. Not to be changed."""
    return torch.arange(count, device=device)


def first_true(chosen: Tensor) -> Tensor:  # bool [B, N] -> [B]
    """The index of each row's first true entry, N where there is none; `argmax` promises no first."""
    count = chosen.shape[-1]
    return torch.where(chosen, cached_arange(count, chosen.device), count).amin(-1)


def locate(columns: Tensor, wanted: Tensor) -> Tensor:  # [B, R], [B, S] -> [B, S]
    """Where each wanted column stands in the row's sorted `columns`."""
    return torch.searchsorted(columns.contiguous(), wanted.contiguous())


@dataclass(frozen=True, eq=False)
class Window:
    """A span of columns per row, [first, last); empty for a row with nothing left to do."""

    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]
    _masks: dict[int, Tensor] = field(
        default_factory=dict, init=False, repr=False
    )  # by width, as they are asked

    def columns(self, width: int) -> Bool[Tensor, "B L"]:
        """The window as a mask. Parts ask for it several times a pass, mostly as wide."""
        if width not in self._masks:
            column = cached_arange(width, self.first.device)
            self._masks[width] = (column >= self.first[:, None]) & (column < self.last[:, None])
        return self._masks[width]
