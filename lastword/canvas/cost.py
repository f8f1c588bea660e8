"""Cost: what decoding spent, counted per row and independent of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Work(NamedTuple):
    """What one row cost, in plain numbers."""

    passes: int
    columns: int
    squares: int


@dataclass(frozen=True, eq=False)
class Cost:
    """Forward passes, columns they computed, and columns times the columns each attended to.

    Passes alone mislead once the canvas varies. Padding is not counted, so a row costs the same in
    a batch as alone; guidance computes every column twice within one pass. Where layers compute
    different numbers of columns, a pass counts their mean, rounded up: never less than was done.
    """

    passes: Int[Tensor, "B"]
    columns: Int[Tensor, "B"]
    squares: Int[Tensor, "B"]

    @classmethod
    def nothing(cls, rows: int, device: torch.device | str = "cpu") -> Cost:
        zero = torch.zeros(rows, dtype=torch.long, device=device)
        return cls(zero, zero, zero)

    @classmethod
    def of(cls, works: Sequence[Work]) -> Cost:
        """The cost of rows whose numbers are known."""
        return cls(*(torch.tensor(numbers) for numbers in zip(*works)))

    def plus_pass(
        self,
        took_part: Bool[Tensor, "B"],
        computed: Int[Tensor, "B"],
        attended: Int[Tensor, "B"],
        *,
        passes: int = 1,
    ) -> Cost:
        """The cost after one more pass over some rows; a second branch of it counts as no pass."""
        columns = computed * took_part
        return Cost(
            self.passes + passes * took_part,
            self.columns + columns,
            self.squares + columns * attended,
        )

    def row(self, index: int) -> Work:
        return Work(int(self.passes[index]), int(self.columns[index]), int(self.squares[index]))
