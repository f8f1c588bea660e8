"""Memory: what earlier passes computed, by layer, row and column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor


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

        Masks are [R, L]: what every layer must recompute, what the pass will be asked for, the answer,
        and the columns that exist for this pass.
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
    # Does every row carry as many columns as the widest, side by side? A short row else repeats its last.
    uniform: bool = False
    # Where this process has some of the heads: sums a number over all of them, in place.
    across: Callable[[Tensor], Tensor] | None = None

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
