"""MaskPredictor: what decoding asks of a model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, device

from lastword.canvas.ids import TokenIds
from lastword.memory.memory import RowMemory


@runtime_checkable
class MaskPredictor(Protocol):
    """A masked diffusion language model: tokens in, logits for chosen columns out.

    It knows tokens and memory; it knows nothing of steps, lengths or rules. Whatever the
    architecture does inside (Dream predicts each token from the column before it), the logits it
    returns for a column are the prediction of the token AT that column.

    A model may say in `slots` what canvas it is made for; the default length keeps to it.
    """

    ids: TokenIds
    positions: int  # prompt and answer together may not need more

    @property
    def device(self) -> device: ...

    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S] columns to predict
        *,
        valid: Tensor | None = None,  # [B, L] False where a column is padding; None: all valid
        stale: Tensor | None = None,  # [B, R] columns to recompute; None: all
        memory: RowMemory | None = None,  # keys and values of the columns that are not stale
    ) -> Tensor:  # [B, S, V]
        """Logits for the tokens at columns `read`, which must lie among the stale ones."""
        ...
