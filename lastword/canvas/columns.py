"""Sets of columns, one sorted index row per canvas row."""

from __future__ import annotations

import torch
from torch import Tensor


def columns_of(chosen: Tensor) -> Tensor:  # bool [B, L] -> [B, R]
    """The true columns of each row in order; short rows repeat their last column.

    A repeated column is computed twice and written twice with the same value, so it does no harm.
    """
    counts = chosen.sum(-1)
    widest = int(counts.max()) if counts.numel() else 0
    row, column = chosen.nonzero(as_tuple=True)
    found = torch.zeros(len(chosen), widest, dtype=torch.long, device=chosen.device)
    found[row, chosen.cumsum(-1)[row, column] - 1] = column
    last = (counts - 1).clamp(min=0)[:, None]
    slot = torch.arange(widest, device=chosen.device).expand(len(chosen), -1)
    return found.gather(1, torch.minimum(slot, last))


def locate(columns: Tensor, wanted: Tensor) -> Tensor:  # [B, R], [B, S] -> [B, S]
    """Where each wanted column stands in the row's sorted `columns`."""
    return torch.searchsorted(columns.contiguous(), wanted.contiguous())
