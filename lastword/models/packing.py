"""Packing: the columns a pass computes, of all rows one behind the other, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.canvas.columns import leftmost, locate
from lastword.kernels.attention import PackedRows
from lastword.memory.key_values import RowKeyValues


@dataclass(frozen=True, eq=False)
class Packing:
    """N columns of B rows."""

    tokens: Tensor  # [N]
    positions: Tensor  # [N] within their rows
    rows: PackedRows
    where: Tensor  # [B, S] which of the N are read

    @classmethod
    def of(
        cls,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        valid: Tensor | None,  # [B, L], in each row side by side
        carried: Tensor | None,  # [B, R], sorted
        memory: RowKeyValues | None,
    ) -> Packing:
        """Pack what is carried and valid, each column once.

        That asks the device how many those are. Where every row carries as many (`memory.uniform`, or all
        columns and no `valid`) nothing is asked: such a pass can be captured.
        """
        (count, width), device = tokens.shape, tokens.device
        row = torch.arange(count, device=device)[:, None]
        columns = (
            torch.arange(width, device=device).expand(count, -1) if carried is None else carried
        )
        first = torch.zeros_like(row)
        positions = columns
        if valid is not None:
            first = leftmost(valid).clamp(max=width - 1)[:, None]
            positions = (valid.cumsum(-1) - 1).clamp(min=0).gather(1, columns)
        own = tokens.gather(1, columns)
        most = columns.shape[1]
        # What a family reads before a row's first column does not exist: the column speaks for itself.
        where = torch.maximum(read, first)
        where = (where if carried is None else locate(carried, where)) + row * most
        flat, kept = (own.flatten(), positions.flatten()), None
        if memory is None or not memory.uniform:
            kept = valid if carried is None else F.pad(carried.diff() != 0, (1, 0), value=True)
        slots = columns if memory is None else memory.base(device)[:, None] + columns
        slots = slots.flatten()
        starts = torch.arange(0, count * most + 1, most, device=device)
        if kept is not None:
            (picked,) = kept.flatten().nonzero(as_tuple=True)
            flat, slots = (flat[0][picked], flat[1][picked]), slots[picked]
            where = (kept.flatten().cumsum(0) - 1)[where]
            starts = F.pad(kept.sum(-1).cumsum(0), (1, 0))
        if memory is None:
            slots, key_starts, keys = torch.arange(len(slots), device=device), starts, starts.diff()
        else:
            key_starts = F.pad(memory.base(device) + first[:, 0], (0, 1))
            keys = torch.full_like(first[:, 0], width) if valid is None else valid.sum(-1)
        rows = PackedRows(starts.int(), key_starts.int(), keys.int(), most, width, slots)
        return cls(*flat, rows, where)
