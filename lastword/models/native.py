"""NativeModel: what our own models have in common, a network, its ids and its tokenizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from lastword.calibration.ratios import Calibration
from lastword.canvas.ids import TokenIds
from lastword.memory.memory import RowMemory
from lastword.models.config import FamilyConfig
from lastword.models.layers import BidirectionalTransformer, Shape
from lastword.models.predictor import USUAL_SLOTS
from lastword.models.tokenizer import Tokenizer


class NativeModel(nn.Module):
    """A MaskPredictor around a `BidirectionalTransformer`; a family says how columns are read."""

    config: ClassVar[type[FamilyConfig]]  # what the family's config.json says
    tensors: ClassVar[Mapping[str, str]]  # our parameter names to the checkpoint's
    keeps_memory = True
    turn_end: ClassVar[str]  # the token that closes a turn, where the tokenizer has it

    def __init__(self, shape: Shape, ids: TokenIds, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.network = BidirectionalTransformer(shape)
        self.ids = ids
        self.tokenizer = tokenizer
        self.positions = shape.positions
        self.slots = USUAL_SLOTS
        self.calibration: Calibration | None = None

    @property
    def device(self) -> torch.device:
        return self.network.embedding.weight.device

    @abstractmethod
    def forward(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R], sorted
        memory: RowMemory | None = None,
    ) -> Tensor:  # [B, S, V]
        """Logits for the tokens at columns `read`."""
