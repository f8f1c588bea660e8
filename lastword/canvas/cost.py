"""Cost: what decoding spent, counted per row and independent of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class TokenCost(NamedTuple):
    """What one row cost, in plain numbers."""

    forward_passes: int
    tokens_computed: int
    attention_pairs: int


@dataclass(frozen=True, eq=False)
class BatchCost:
    """Forward passes, columns they computed, and columns times the columns each attended to.

    Passes alone mislead once the canvas varies. Padding is not counted, so a row costs the same in
    a batch as alone; guidance computes every column twice within one pass. Where layers compute
    different numbers of columns, a pass counts their mean, rounded up: never less than was done.
    """

    forward_passes: Int[Tensor, "B"]
    tokens_computed: Int[Tensor, "B"]
    attention_pairs: Int[Tensor, "B"]

    @classmethod
    def zeros(cls, rows: int, device: torch.device | str = "cpu") -> BatchCost:
        zero = torch.zeros(rows, dtype=torch.long, device=device)
        return cls(zero, zero, zero)

    @classmethod
    def stack(cls, works: Sequence[TokenCost]) -> BatchCost:
        """The cost of rows whose numbers are known."""
        return cls(*(torch.tensor(numbers) for numbers in zip(*works)))

    def add_pass(
        self,
        participates: Bool[Tensor, "B"],
        tokens: Int[Tensor, "B"],
        attended: Int[Tensor, "B"],
        *,
        passes: int = 1,
    ) -> BatchCost:
        """The cost after one more pass over some rows; a second branch of it counts as no pass."""
        columns = tokens * participates
        return BatchCost(
            self.forward_passes + passes * participates,
            self.tokens_computed + columns,
            self.attention_pairs + columns * attended,
        )

    def row(self, index: int) -> TokenCost:
        return TokenCost(
            int(self.forward_passes[index]),
            int(self.tokens_computed[index]),
            int(self.attention_pairs[index]),
        )
