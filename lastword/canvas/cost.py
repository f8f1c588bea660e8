"""Cost of decoding, counted per row and independent of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class TokenCost(NamedTuple):
    """The cost of one row as plain numbers."""

    forward_passes: int
    tokens_computed: int
    attention_pairs: int


@dataclass(frozen=True, eq=False)
class BatchCost:
    """Forward passes, tokens computed by them, and pairs of tokens that attended to each other, per row.

    Forward passes alone mislead once the canvas varies. Padding is not counted, so a row costs the same in
    a batch as alone; guidance computes every token twice within one pass. Where layers compute different
    numbers of tokens, their mean counts, rounded up.
    """

    forward_passes: Int[Tensor, "B"]
    tokens_computed: Int[Tensor, "B"]
    attention_pairs: Int[Tensor, "B"]

    @classmethod
    def zeros(cls, rows: int, device: torch.device | str = "cpu") -> BatchCost:
        zero = torch.zeros(rows, dtype=torch.long, device=device)
        return cls(zero, zero, zero)

    @classmethod
    def stack(cls, costs: Sequence[TokenCost]) -> BatchCost:
        """Return the costs of several rows as one batch."""
        return cls(*(torch.tensor(numbers) for numbers in zip(*costs)))

    def add_pass(
        self,
        participates: Bool[Tensor, "B"],
        tokens: Int[Tensor, "B"],
        attended: Int[Tensor, "B"],
        *,
        passes: int = 1,
    ) -> BatchCost:
        """Return the cost after a pass over some rows; the second branch of guidance has `passes=0`."""
        computed = tokens * participates
        return BatchCost(
            self.forward_passes + passes * participates,
            self.tokens_computed + computed,
            self.attention_pairs + computed * attended,
        )

    def row(self, index: int) -> TokenCost:
        return TokenCost(
            int(self.forward_passes[index]),
            int(self.tokens_computed[index]),
            int(self.attention_pairs[index]),
        )
