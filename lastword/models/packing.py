"""Packing: the columns a pass computes, of all rows one behind the other, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.canvas.columns import counted, leftmost, locate, packed_among
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
        if memory is not None and carried is not None and memory.uniform:
            return cls._uniform(tokens, read, valid, carried, memory)
        (count, width), device = tokens.shape, tokens.device
        every = torch.arange(width, device=device).expand(count, -1)
        columns = every if carried is None else carried
        most = columns.shape[1]
        positions, where = columns, read
        if valid is not None:
            first = leftmost(valid).clamp(max=width - 1)[:, None]
            # What a family reads before a row's first column is not there: the column speaks for itself.
            where = torch.maximum(read, first)
            positions = (columns - first).clamp(min=0)
            if memory is None:  # which would have no place for gaps
                positions = (valid.cumsum(-1) - 1).clamp(min=0).gather(1, columns)
        where = where if carried is None else locate(carried, where)
        where = where + torch.arange(0, count * most, most, device=device)[:, None]
        starts = torch.arange(0, count * most + 1, most, device=device)
        base = None if memory is None else memory.base(device)
        slots = columns if base is None else base[:, None] + columns
        flat = [tokens.gather(1, columns).flatten(), positions.flatten(), slots.flatten()]
        kept = valid if carried is None else F.pad(carried.diff() != 0, (1, 0), value=True)
        if kept is not None:
            (picked,) = kept.flatten().nonzero(as_tuple=True)
            flat = [numbers[picked] for numbers in flat]
            where = (kept.flatten().cumsum(0) - 1)[where]
            starts = F.pad(kept.sum(-1).cumsum(0), (1, 0))
        own = None
        if base is None:
            flat[2] = torch.arange(len(flat[2]), device=device)
            key_starts, keys = starts, starts.diff()
            own = slice(0, len(flat[2])) if count == 1 else None
        elif valid is None:
            key_starts, keys = F.pad(base, (0, 1)), torch.full_like(base, width)
        else:
            key_starts, keys = F.pad(base + first[:, 0], (0, 1)), valid.sum(-1)
        rows = PackedRows(starts.int(), key_starts.int(), keys.int(), most, width, flat[2], own)
        return cls(flat[0], flat[1], rows, where)

    @classmethod
    def among(cls, tokens: Tensor, read: Tensor, valid: Tensor, most: int) -> Packing:
        """Pack all valid columns, of which there are no more than `most`; nothing is asked.

        What is left of the `most` repeats a column that no row looks at.
        """
        (count, width), device = tokens.shape, tokens.device
        packed, picked = packed_among(valid.flatten(), most)
        first = leftmost(valid).clamp(max=width - 1)[:, None]
        positions = (counted(width, device) - first).clamp(min=0).flatten()
        where = torch.maximum(read, first) + counted(count, device)[:, None] * width
        counts = valid.sum(-1, dtype=torch.int32)
        starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        rows = PackedRows(starts, starts, counts, width, width, counted(most, device))
        return cls(tokens.flatten()[picked], positions[picked], rows, packed[where])

    @classmethod
    def _uniform(
        cls,
        tokens: Tensor,
        read: Tensor,
        valid: Tensor | None,
        columns: Tensor,
        memory: RowKeyValues,
    ) -> Packing:
        """The same where every row carries as many columns side by side, in ten small kernels."""
        (count, width), most = tokens.shape, columns.shape[1]
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        base, every = memory.base(tokens.device), memory.steps(width, 1, columns)
        starts = memory.steps(count + 1, most, columns, torch.int32)
        # A scalar would be a kernel of its own to make a tensor of it.
        end = memory.steps(1, 1, columns, first=width - 1)
        first = torch.where(valid, every, end).amin(-1, keepdim=True)
        key_starts = torch.empty_like(starts)
        torch.add(base, first[:, 0], out=key_starts[:-1])
        # Counted from a row's last column, since its first may be there twice (see Dream).
        last = memory.steps(count, most, columns, first=most - 1)[:, None]
        where = torch.maximum(read, first) - columns[:, -1:] + last
        slots = (base[:, None] + columns).flatten()
        keys = valid.sum(-1, dtype=torch.int32)
        rows = PackedRows(starts, key_starts, keys, most, width, slots, memory.own)
        return cls(tokens.gather(1, columns).flatten(), (columns - first).flatten(), rows, where)
