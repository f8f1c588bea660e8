"""NativeModel: what our own models have in common, a network, its ids and its tokenizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from lastword.calibration.ratios import Calibration
from lastword.canvas.columns import locate
from lastword.canvas.tokens import TokenIds
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS
from lastword.models.config import FamilyConfig
from lastword.models.kernels.compiled import compiles, has_float8
from lastword.models.kernels.norm import add_norm
from lastword.models.layers import BidirectionalTransformer, TransformerConfig, at_columns
from lastword.models.packed import PackedNetwork, Packing
from lastword.models.quantize import is_float8
from lastword.models.storage import RowKVStorage, RowStorage
from lastword.models.tokenizer import Tokenizer


class NativeModel(nn.Module):
    """A MaskPredictor around a `BidirectionalTransformer`; a family says how columns are read.

    On a GPU a pass is packed (packed.py), but for float64. Elsewhere it is computed as layers.py reads.
    `packs` says otherwise: True packs anywhere, False nowhere.
    """

    config: ClassVar[type[FamilyConfig]]  # what the family's config.json says
    tensors: ClassVar[Mapping[str, str]]  # our parameter names to the checkpoint's
    supports_cache = True
    turn_end: ClassVar[str]  # the token that closes a turn, where the tokenizer has it
    packs: bool | None = None

    def __init__(self, shape: TransformerConfig, ids: TokenIds, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.network = BidirectionalTransformer(shape)
        self.ids = ids
        self.tokenizer = tokenizer
        self.max_seq_len = shape.max_seq_len
        self.default_max_new_tokens = DEFAULT_MAX_NEW_TOKENS
        self.calibration: Calibration | None = None

    @property
    def device(self) -> torch.device:
        return self.network.embedding.weight.device

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R], sorted
        memory: RowStorage | None = None,
    ) -> Tensor:  # [B, S, V]
        """Logits for the tokens at columns `read`."""
        return self.head(self.states(tokens, read, valid=valid, stale=stale, memory=memory))

    @torch.no_grad()
    def states(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R], sorted
        memory: RowStorage | None = None,
        most: int | None = None,
    ) -> Tensor:  # [B, S, W]
        """The last layer's states where they predict the tokens at columns `read`: what `head` takes.

        A caller that reads many columns can take the head some of them at a time. One that knows that no
        more than `most` columns are valid says so, where `is_packed`: then nothing is asked of the device.
        """
        source, carried = self.sources(tokens, read, valid, stale, memory)
        if self.is_packed and (memory is None or isinstance(memory, RowKVStorage)):
            if most is not None and valid is not None:
                packing = Packing.among(tokens, source, valid, most)
            else:
                packing = Packing.of(tokens, source, valid, carried, memory)
            return PackedNetwork.of(self.network).hidden(packing, memory)[packing.where]
        hidden = self.network.hidden(tokens, valid, carried, memory)
        return at_columns(hidden, source if carried is None else locate(carried, source))

    @torch.no_grad()
    def head(self, states: Tensor) -> Tensor:  # [..., W] -> [..., V]
        """Logits of states: the final norm and the vocabulary's product."""
        norm = self.network.norm
        if not self.is_packed:
            return self.network.head(norm(states))
        _, normed = add_norm(states.flatten(0, -2).contiguous(), None, norm.weight, norm.eps)
        return self.network.head(normed).view(*states.shape[:-1], -1)

    @abstractmethod
    def sources(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        valid: Tensor | None,  # [B, L]
        stale: Tensor | None,  # [B, R], sorted
        memory: RowStorage | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The columns [B, S] whose states predict `read`, and those [B, R] to compute for it; None: all."""

    @property
    def is_packed(self) -> bool:
        """Are passes computed on packed columns?"""
        if self.packs is not None:
            return self.packs
        weight = self.network.embedding.weight
        if not weight.is_cuda or not compiles(weight):
            return False
        return has_float8(weight.device) or not is_float8(self.network)
