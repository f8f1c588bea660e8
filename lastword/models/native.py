"""The model that `load` builds from a checkpoint: a transformer with its token ids and its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lastword.calibration import Calibration
from lastword.canvas.columns import column_indices, locate
from lastword.canvas.tokens import TokenIds
from lastword.models.architectures import Architecture
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS, all_columns
from lastword.models.kernels import has_float8, uses_triton
from lastword.models.kernels.fused import add_rms_norm
from lastword.models.layers import BidirectionalTransformer, TransformerConfig, at_columns
from lastword.models.packed import PackedNetwork, Packing
from lastword.models.quantize import is_float8
from lastword.models.storage import RowKVStorage, RowStorage
from lastword.models.tokenizer import Tokenizer

MAX_COLUMNS_CPU = 2048  # of several rows computed at once; more do not fit into the cache of a core


class NativeModel(nn.Module):
    """A `MaskPredictor` around a `BidirectionalTransformer`; `load` returns one for a checkpoint.

    Passes run on packed columns (packed.py), except in float64 on a GPU, with fp8 weights on a device without fp8, and
    with a cache of layer outputs; these run on padded rows (layers.py). `packs` overrides this.
    """

    supports_cache = True
    packs: bool | None = None

    def __init__(
        self, architecture: Architecture, config: TransformerConfig, ids: TokenIds, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.network = BidirectionalTransformer(config)
        self.ids = ids
        self.tokenizer = tokenizer
        self.max_seq_len = config.max_seq_len
        self.default_max_new_tokens = DEFAULT_MAX_NEW_TOKENS
        self.single_turn = False  # whether it was trained on one question and one answer
        self.calibration: Calibration | None = None

    @property
    def device(self) -> torch.device:
        return self.network.embedding.weight.device

    @property
    def is_packed(self) -> bool:
        """Return whether passes run on packed columns."""
        if self.packs is not None:
            return self.packs
        weight = self.network.embedding.weight
        if is_float8(self.network):
            return weight.is_cuda and uses_triton(weight) and has_float8(weight.device)
        return not weight.is_cuda or uses_triton(weight)

    def forward(self, tokens: Tensor, read: Tensor | None = None, **arguments: Any) -> Tensor:  # [B, S, V]
        """Return logits for the tokens at columns `read` (None: all); the keyword arguments are those of `states`."""
        return self.head(self.states(tokens, all_columns(tokens) if read is None else read, **arguments))

    @torch.no_grad()
    def states(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R] columns to recompute, sorted; None: all
        storage: RowStorage | None = None,
        capacity: int | None = None,
    ) -> Tensor:  # [B, S, W]
        """Return the hidden states from which `head` computes the logits for columns `read`.

        A caller that reads many columns can save memory by applying the head to a few of them at a time. `capacity` is
        an upper bound of the number of valid columns in all rows; with it a packed pass needs no host synchronisation.
        """
        source, columns = read, stale
        if self.architecture.shifted_logits:
            source, columns = _columns_before(tokens, read, valid, stale, storage)
        if self.is_packed and (storage is None or isinstance(storage, RowKVStorage)):
            packed = PackedNetwork.of(self.network)
            if capacity is not None and valid is not None:
                packing = Packing.with_capacity(tokens, source, valid, capacity)
                return packed.hidden(packing, storage)[packing.read]
            width = (tokens if columns is None else columns).shape[1]
            size = max(1, len(tokens) if tokens.is_cuda else MAX_COLUMNS_CPU // width)
            outputs = []
            for first in range(0, len(tokens), size):
                rows = slice(first, first + size)
                inside, stale_part = (None if mask is None else mask[rows] for mask in (valid, columns))
                part = None if storage is None else replace(storage, rows=storage.rows[rows])
                packing = Packing.from_columns(tokens[rows], source[rows], inside, stale_part, part)
                outputs.append(packed.hidden(packing, part)[packing.read])
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        hidden = self.network.hidden(tokens, valid, columns, storage)
        return at_columns(hidden, source if columns is None else locate(columns, source))

    @torch.no_grad()
    def head(self, states: Tensor) -> Tensor:  # [..., W] -> [..., V]
        """Apply the final norm and the output head to hidden states and return the logits."""
        norm = self.network.norm
        if not self.is_packed:
            return self.network.head(norm(states))
        _, normed = add_rms_norm(states.flatten(0, -2).contiguous(), None, norm.weight, norm.eps)
        return self.network.head(normed).view(*states.shape[:-1], -1)


def _columns_before(
    tokens: Tensor, read: Tensor, valid: Tensor | None, stale: Tensor | None, storage: RowStorage | None
) -> tuple[Tensor, Tensor | None]:
    """Return the columns [B, S] whose shifted output predicts `read`, and the columns [B, R] to recompute.

    The first column of a row has no column before it and predicts itself, as in the authors' code.
    """
    source = (read - 1).clamp(min=0)
    if stale is None:
        return source, None
    if storage is not None and storage.uniform:  # one more column per row: the one before, or the first one again
        first = stale[:, :1]
        before = torch.minimum(source[:, :1], first)
        if valid is not None:
            before = torch.where(valid.gather(1, before), before, first)
        added = (before < first)[:, 0].to(storage.tokens_computed.device)
        storage.tokens_computed = storage.tokens_computed + added
        return source, torch.cat((before, stale), 1)
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    chosen = chosen.scatter(1, stale, True).scatter(1, source, True)
    if storage is not None:
        storage.tokens_computed = chosen.sum(-1)  # includes the added columns
    return source, column_indices(chosen)
