"""Features: what every layer last said about every column, and which columns to ask again."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.columns import columns_of
from lastword.memory import KeyValues, Memory, RowMemory


class Features(Memory):
    """Keys, values and the outputs of attention and MLP [B, L, W], by layer, row and column.

    A pass carries every column. The first layer recomputes all of them; any other recomputes the
    stale ones and, of the answer columns that are not stale, the `share` whose values changed most.
    """

    def __init__(self, rows: int, width: int, share: float) -> None:
        self.attention = KeyValues(rows, width)
        self.share = share
        self._rows, self._width = rows, width
        self._outputs: dict[tuple[int, str], Tensor] = {}

    def at(self, rows: Tensor, stale: Tensor, answer: Tensor, valid: Tensor) -> RowFeatures:
        return RowFeatures(self, rows, stale, answer, valid)

    def fit(self, width: int) -> None:
        self.attention.fit(width)
        by = (0, 0, 0, width - self._width)
        if by[-1]:
            self._outputs = {name: F.pad(kept, by) for name, kept in self._outputs.items()}
            self._width = width

    def outputs(self, layer: int, half: str, like: Tensor) -> Tensor:
        """What half a layer last said, made on first use in the dtype and on the device of `like`."""
        if (layer, half) not in self._outputs:
            shape = (self._rows, self._width, like.shape[-1])
            self._outputs[layer, half] = like.new_zeros(shape)
        return self._outputs[layer, half]


class RowFeatures(RowMemory):
    """Some rows of a Features."""

    def __init__(
        self, memory: Features, rows: Tensor, stale: Tensor, answer: Tensor, valid: Tensor
    ) -> None:
        self._memory, self._rows = memory, rows
        self._stale, self._choice = stale, answer & ~stale
        # The product in float64, as Python multiplies: 0.29 of 100 columns are 28, not 29.
        wanted = (answer.sum(-1).double() * memory.share).long()
        chosen = torch.minimum(wanted, self._choice.sum(-1))
        self._count = stale.sum(-1) + chosen
        self._work, self._layers = valid.sum(-1), 1  # the first layer
        self.carried, self.computed = None, self._work
        self._choosing = memory.share > 0 and bool(self._choice.any())
        # A row may have nothing to recompute beside one that has; its slots are not written.
        busy = self._count > 0
        self._busy = None if bool(busy.all()) else busy.nonzero()[:, 0]
        self._same: Tensor | None = None  # the columns of every layer, where none has a choice

    def part(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        if layer == 0:
            return None
        self._work, self._layers = self._work + self._count, self._layers + 1
        self.computed = -(-self._work // self._layers)  # rounded up
        if self._choosing:
            return self._most_changed(self._renewed(layer, x, values))
        if self._same is None:
            self._same = columns_of(self._stale).to(x.device)
        return self._same

    def _renewed(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Replace the values of every column there is a choice of; return how far they moved.

        Half the squared distance of the unit vectors is 1 - cosine without its cancellation: of
        columns that hardly moved, rounding would choose.
        """
        first = int(self._choice.any(0).to(torch.int8).argmax())
        fresh = values(x[:, first:])  # [R, H, C, D]
        _, kept = self._memory.attention.storage(layer, fresh)
        rows, choice = self._rows.to(x.device), self._choice[:, first:].to(x.device)
        old = kept[rows, :, first:]
        kept[rows, :, first:] = torch.where(choice[:, None, :, None], fresh, old)
        moved = (_direction(fresh) - _direction(old)).square().sum(-1)
        return F.pad(moved.masked_fill(~choice, -1.0), (first, 0), value=-1.0)  # [R, L]

    def _most_changed(self, moved: Tensor) -> Tensor:
        """Stale columns and then those that moved furthest; of equals, the leftmost."""
        device = moved.device
        moved = moved.masked_fill(self._stale.to(device), torch.inf)
        order = moved.argsort(dim=-1, descending=True, stable=True)
        last = (self._count - 1).clamp(min=0)[:, None]
        slots = torch.minimum(torch.arange(int(self._count.max())).expand(len(last), -1), last)
        return order.gather(1, slots.to(device))

    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        if layer == 0:  # recomputed in every pass: nothing to keep
            return keys, values
        heads = torch.arange(keys.shape[1], device=keys.device)
        all_keys, all_values = self._memory.attention.storage(layer, keys)
        rows, columns, keys, values = self._written(columns, keys, values)
        where = (rows[:, None, None], heads[None, :, None], columns[:, None, :])
        all_keys[where], all_values[where] = keys, values
        return self._own(all_keys), self._own(all_values)

    def filled(self, layer: int, half: str, columns: Tensor, fresh: Tensor) -> Tensor:
        kept = self._memory.outputs(layer, half, fresh)
        rows, columns, fresh = self._written(columns, fresh)
        kept[rows[:, None], columns] = fresh
        return self._own(kept)

    def _written(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device
        if self._busy is None:
            return self._rows.to(device), *tensors
        busy = self._busy.to(device)
        return self._rows.to(device)[busy], *(tensor[busy] for tensor in tensors)

    def _own(self, kept: Tensor) -> Tensor:
        every = len(self._rows) == len(kept)
        return kept if every else kept[self._rows.to(kept.device)]


def _direction(values: Tensor) -> Tensor:  # [R, H, C, D] -> [R, C, H * D], all heads together
    together = values.transpose(1, 2).flatten(2)
    return F.normalize(together.to(torch.promote_types(values.dtype, torch.float32)), dim=-1)
