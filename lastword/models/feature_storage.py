"""Storage of keys, values and layer outputs for dLLM-Cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.canvas.columns import cached_arange, column_indices
from lastword.models.storage import CacheStorage, KVStorage, RowStorage

NO_TURN = 1e-5  # the distance of two unit vectors that rounding alone may keep apart, in float32


class FeatureStorage(CacheStorage):
    """Keys, values and the outputs of attention and MLP [B, L, W], by layer, row and column.

    A pass carries every column. The first layer recomputes all of them; any other recomputes the
    stale ones and, of the answer columns that are not stale, the `share` whose values changed most.
    """

    def __init__(self, rows: int, width: int, share: float) -> None:
        self.attention = KVStorage(rows, width)
        self.share = share
        self._rows, self._width = rows, width
        self._outputs: dict[tuple[int, str], Tensor] = {}

    def at(
        self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor
    ) -> RowFeatureStorage:
        return RowFeatureStorage(self, rows, stale, answer & valid, valid)

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


class RowFeatureStorage(RowStorage):
    """Some rows of a Features."""

    def __init__(
        self, memory: FeatureStorage, rows: Tensor, stale: Tensor, answer: Tensor, valid: Tensor
    ) -> None:
        choice = answer & ~stale
        # The product in float64, as Python multiplies: 0.29 of 100 columns are 28, not 29.
        wanted = (answer.sum(-1).double() * memory.share).long()
        self._memory = memory
        self._counts = stale.sum(-1) + torch.minimum(wanted, choice.sum(-1))
        self._choosing = memory.share > 0 and bool(choice.any())
        self._first = int(choice.any(0).to(torch.int8).argmax())  # column there is a choice of
        self._work, self._layers = valid.sum(-1), 1  # the first layer
        self.carried, self.computed = None, self._work
        # What follows moves to the device with the first layer that needs it.
        self._rows, self._stale, self._choice = rows, stale, choice[:, self._first :]
        self._columns = column_indices(stale)
        entry = cached_arange(int(self._counts.max()), rows.device).expand(len(rows), -1)
        self._slots = torch.minimum(entry, (self._counts - 1).clamp(min=0)[:, None])
        # A row may have nothing to recompute beside one that has: its slots are not written.
        busy = self._counts > 0
        self._busy = None if bool(busy.all()) else busy.nonzero()[:, 0]

    def part(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        if layer == 0:
            return None
        self._move(x.device)
        self._work, self._layers = self._work + self._counts, self._layers + 1
        self.computed = -(-self._work // self._layers)  # rounded up
        if not self._choosing:
            return self._columns
        # Stale columns first, then those that moved furthest; of equals, the leftmost.
        need = self._renewed(layer, x, values).masked_fill(self._stale, torch.inf)
        return need.argsort(dim=-1, descending=True, stable=True).gather(1, self._slots)

    def _renewed(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Replace the values of every column there is a choice of; return how far they turned.

        The squared distance of unit vectors is 2 - 2 cosine without its cancellation: of columns that
        hardly turned, rounding would choose. Of columns that did not turn it would as well, since what
        a product rounds to hangs on how many rows and columns are multiplied at once: in a pass in which
        a row wrote nothing a batch would choose other columns than the row alone. They are equals.
        """
        fresh = values(x[:, self._first :])  # [R, H, C, D]
        _, kept = self._memory.attention.storage(layer, fresh)
        old = kept[self._rows, :, self._first :]
        renewed = torch.where(self._choice[:, None, :, None], fresh, old)
        kept[self._rows, :, self._first :] = renewed
        turn = self._turn(fresh, old)
        rounding = max(NO_TURN, torch.finfo(fresh.dtype).eps)
        turn = turn.masked_fill(turn < rounding**2, 0)
        return F.pad(turn.masked_fill(~self._choice, -1.0), (self._first, 0), value=-1.0)  # [R, L]

    def _turn(self, fresh: Tensor, old: Tensor) -> Tensor:  # [R, H, C, D] -> [R, C]
        """The squared distance of two directions, of all heads together."""
        fresh, old = _together(fresh), _together(old)
        return (F.normalize(fresh, dim=-1) - F.normalize(old, dim=-1)).square().sum(-1)

    def update(self, layer: int, columns: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer == 0:  # recomputed in every pass: nothing to keep
            return keys, values
        self._move(keys.device)
        heads = torch.arange(keys.shape[1], device=keys.device)[None, :, None]
        all_keys, all_values = self._memory.attention.storage(layer, keys)
        rows, columns, keys, values = self._busy_only(self._rows, columns, keys, values)
        where = (rows[:, None, None], heads, columns[:, None, :])
        all_keys[where], all_values[where] = keys, values
        return self._own(all_keys), self._own(all_values)

    def filled(self, layer: int, half: str, columns: Tensor, fresh: Tensor) -> Tensor:
        self._move(fresh.device)
        kept = self._memory.outputs(layer, half, fresh)
        rows, columns, fresh = self._busy_only(self._rows, columns, fresh)
        kept[rows[:, None], columns] = fresh
        return self._own(kept)

    def _busy_only(self, *tensors: Tensor) -> Sequence[Tensor]:
        return tensors if self._busy is None else [tensor[self._busy] for tensor in tensors]

    def _own(self, kept: Tensor) -> Tensor:
        return kept if len(self._rows) == len(kept) else kept[self._rows]

    def _move(self, device: torch.device) -> None:
        if self._rows.device != device:
            self._rows, self._stale = self._rows.to(device), self._stale.to(device)
            self._choice, self._slots = self._choice.to(device), self._slots.to(device)
            self._columns = self._columns.to(device)
            self._busy = None if self._busy is None else self._busy.to(device)


def _together(values: Tensor) -> Tensor:  # [R, H, C, D] -> [R, C, H * D], in float32 at least
    wide = torch.promote_types(values.dtype, torch.float32)
    return values.transpose(1, 2).flatten(2).to(wide)
