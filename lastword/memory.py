"""Memory: what earlier passes computed, by layer, row and column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from lastword.columns import columns_of


class Memory(ABC):
    """What a cache opens and `Forward` carries from pass to pass."""

    @abstractmethod
    def fit(self, width: int) -> None:
        """Follow a canvas that grew or shrank on the right."""

    @abstractmethod
    def at(
        self, rows: Tensor, stale: Tensor, read: Tensor, answer: Tensor, valid: Tensor
    ) -> RowMemory:
        """The part that belongs to some rows, for one pass over them.

        Masks are [R, L], on the CPU: what every layer must recompute, what the pass will be asked
        for, the answer, and the columns that exist for this pass.
        """


class RowMemory(ABC):
    """Some rows of a memory during one pass: all that a model sees of a cache.

    A pass carries columns through the layers. Most memories carry the stale ones and recompute each
    of them in every layer. One that knows what a layer said last may carry more and let every layer
    choose: `part` says which columns, `filled` gives what the layer says about all of them.
    """

    carried: Tensor | None  # [R, S] sorted; None: every column
    # [R] columns recomputed in each row, the mean over layers rounded up. A model that needs more
    # columns than it was asked for says so here.
    computed: Tensor

    @abstractmethod
    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, H, S, D] at `columns` [R, S]; return those of all columns."""

    def part(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor | None:
        """The columns [R, S] a layer with input `x` recomputes; None: all that are carried.

        `values` projects inputs [R, C, W] to the layer's values [R, H, C, D].
        """
        return None

    def filled(self, layer: int, half: str, columns: Tensor, fresh: Tensor) -> Tensor:
        """Keep what a half of the layer says at `columns`; return what it says everywhere."""
        raise NotImplementedError("only a memory that names a part can fill the rest")


class KeyValues(Memory):
    """Keys and values [B, H, L, D] of every column of a canvas, one pair per layer.

    Keys are stored after rotation. Positions count a row's own tokens from its first, so a prompt's
    never move; an answer whose tokens moved is recomputed, whatever the cache says (see Forward).
    """

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def at(
        self,
        rows: Tensor,
        stale: Tensor | None = None,
        read: Tensor | None = None,
        answer: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> RowKeyValues:
        # Only a column that is computed can be read.
        return RowKeyValues(self, rows, stale if stale is None or read is None else stale | read)

    def fit(self, width: int) -> None:
        by = (0, 0, 0, width - self._width)  # a negative pad crops
        if by[-1]:
            self._layers = {
                layer: (torch.nn.functional.pad(keys, by), torch.nn.functional.pad(values, by))
                for layer, (keys, values) in self._layers.items()
            }
            self._width = width

    def storage(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's tensors, made on first use in the dtype and on the device of `like`."""
        if layer not in self._layers:
            shape = (self._rows, like.shape[1], self._width, like.shape[3])
            self._layers[layer] = (like.new_zeros(shape), like.new_zeros(shape))
        return self._layers[layer]


class RowKeyValues(RowMemory):
    """Some rows of a KeyValues."""

    def __init__(self, memory: KeyValues, rows: Tensor, stale: Tensor | None = None) -> None:
        self._memory, self._rows = memory, rows
        self.carried = None if stale is None else columns_of(stale)
        self.computed = torch.zeros_like(rows) if stale is None else stale.sum(-1)

    def update(
        self, layer: int, columns: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._rows.to(keys.device)
        heads = torch.arange(keys.shape[1], device=keys.device)
        where = (rows[:, None, None], heads[None, :, None], columns[:, None, :])
        all_keys, all_values = self._memory.storage(layer, keys)
        all_keys[where], all_values[where] = keys, values
        if len(rows) == len(all_keys):  # every row takes part: no copy
            return all_keys, all_values
        return all_keys[rows], all_values[rows]
