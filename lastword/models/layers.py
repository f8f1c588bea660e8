"""The bidirectional transformer that all architectures share: pre-norm, rotary positions, gated MLP.

Architectures differ in their `TransformerConfig` (see architectures.py). Shapes in comments: B rows, L
columns of the canvas, R columns recomputed, S columns read, H heads, D numbers per head, W hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lastword.errors import CheckpointError
from lastword.models.kernels.fused import rotate
from lastword.models.kernels.int8 import Int8Rows, quantize_rows_int8
from lastword.models.storage import RowStorage

# Rows of unequal length need an attention mask, and the shape of a pass changes whenever a row finishes. cuDNN, which
# torch prefers on recent GPUs, builds a plan for every new shape: on an H200 this took four times as long as the pass.
FOR_ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and switches of a transformer."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    norm_eps: float
    max_seq_len: int
    qkv_bias: bool
    tied_head: bool
    # LLaDA rotates queries and keys in float32 and casts the result; Dream casts cosines and sines to the dtype of the
    # activations first. In bf16 this changes most logits.
    rotate_in_float32: bool

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads) or self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"hidden size {self.hidden_size}, {self.num_heads} heads and {self.num_kv_heads} key-value "
                "heads were given; heads must split the hidden size into even parts, and key-value heads the "
                "heads"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        attention = 2 * self.hidden_size * (self.hidden_size + self.kv_size)
        bias = self.hidden_size + 2 * self.kv_size if self.qkv_bias else 0
        layer = attention + bias + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = (1 if self.tied_head else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * layer + embeddings + self.hidden_size


class RMSNorm(nn.Module):
    """RMS normalization, computed in float32 and cast back before it is multiplied by the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # F.rms_norm(..., weight) would multiply before casting back; the authors multiply after it.
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


def rotary_frequencies(config: TransformerConfig, device: torch.device) -> Tensor:  # [D/2]
    """Return the rotary frequencies, in float32 for every model: rounding to bf16 would shift distant positions."""
    exponents = torch.arange(0, config.head_dim, 2, device=device).float()
    return 1.0 / config.rope_theta ** (exponents / config.head_dim)


def rotary_cos_sin(
    positions: Tensor, frequencies: Tensor, config: TransformerConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:  # [..., R] -> [..., R, D/2]
    """Return the cosines and sines of positions in `dtype`, or in float32 if `config.rotate_in_float32`."""
    angles = positions[..., None].float() * frequencies
    if config.rotate_in_float32:
        dtype = torch.promote_types(dtype, torch.float32)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Bidirectional attention over all valid columns, with grouped-query attention if `num_kv_heads` < `num_heads`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=config.qkv_bias)
        self.key = nn.Linear(config.hidden_size, config.kv_size, bias=config.qkv_bias)
        self.value = nn.Linear(config.hidden_size, config.kv_size, bias=config.qkv_bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, context: PassContext, layer: int) -> Tensor:  # [B, R, W]
        shared = share_input(x, self.query)
        query = rotate(self._split_heads(self.query(shared)), context.cos, context.sin)
        key = rotate(self._split_heads(self.key(shared)), context.cos, context.sin)
        value = self.values(shared)
        if context.storage is not None:
            key, value = context.storage.update(layer, context.columns, key, value)
        groups = self.config.num_heads // self.config.num_kv_heads
        shares_keys = groups > 1 and x.is_cpu  # on a GPU, not every kernel can
        if groups > 1 and not shares_keys:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        with nullcontext() if context.mask is None else sdpa_kernel(FOR_ANY_SHAPE):
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=context.mask, is_causal=context.causal, enable_gqa=shares_keys
            )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def values(self, x: Tensor | Int8Rows) -> Tensor:  # [B, R, W] -> [B, H, R, D]
        return self._split_heads(self.value(x))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)


class GatedMLP(nn.Module):
    """The SiLU-gated feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shared = share_input(x, self.gate)
        return self.down(F.silu(self.gate(shared)) * self.up(shared))


@dataclass(frozen=True)
class PassContext:
    """The inputs of a forward pass that all layers share."""

    cos: Tensor  # [B, 1, R, D/2] of the rotary embedding of `columns`
    sin: Tensor
    mask: Tensor | None  # [B, 1, 1, L] the visible keys; None: all
    columns: Tensor  # [B, R] the columns to recompute
    storage: RowStorage | None
    causal: bool

    def at(self, columns: Tensor) -> PassContext:
        """Return the context of a layer that recomputes only some of the columns."""
        where = columns[:, None, :, None].expand(-1, -1, -1, self.cos.shape[-1])
        return replace(self, cos=self.cos.gather(2, where), sin=self.sin.gather(2, where), columns=columns)


class Block(nn.Module):
    """A pre-norm layer: attention, then MLP, each with a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, context: PassContext, layer: int) -> Tensor:
        storage = context.storage
        columns = None
        if storage is not None:
            columns = storage.select(layer, x, lambda x: self.attention.values(self.attention_norm(x)))
        if storage is None or columns is None:
            x = x + self.attention(self.attention_norm(x), context, layer)
            return x + self.mlp(self.mlp_norm(x))

        def fill(half: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
            selected = at_columns(x, columns)
            output = compute(selected) if columns.shape[1] else selected
            return storage.fill(layer, half, columns, output)

        part = context.at(columns)
        x = x + fill("attention", x, lambda x: self.attention(self.attention_norm(x), part, layer))
        return x + fill("mlp", x, lambda x: self.mlp(self.mlp_norm(x)))


class BidirectionalTransformer(nn.Module):
    """The network of all architectures: embedding, layers, final norm and output head."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        self.packed: object = None  # a `PackedNetwork` that shares these weights, see packed.py

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BidirectionalTransformer:
        self.packed = None  # it refers to the old weights, which `fn` moves or casts
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def hidden(
        self,
        tokens: Tensor,  # [B, L]
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R] columns to recompute; None: all
        storage: RowStorage | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:  # [B, R, W]
        """Return the hidden states of the recomputed columns before the final norm.

        `causal` hides the columns to the right, for the first phase of training models with shifted logits.
        """
        rows, width = tokens.shape
        column = torch.arange(width, device=tokens.device).expand(rows, -1)
        columns = column if stale is None else stale
        # Positions count valid columns only, so padding on the left changes results by rounding only.
        positions = column if valid is None else (valid.cumsum(-1) - 1).clamp(min=0)
        x = self.embedding(tokens.gather(1, columns))
        frequencies = rotary_frequencies(self.config, x.device)
        cos, sin = rotary_cos_sin(positions.gather(1, columns)[:, None], frequencies, self.config, x.dtype)
        mask = None if valid is None else valid[:, None, None, :]
        context = PassContext(cos, sin, mask, columns, storage, causal)
        for layer, block in enumerate(self.blocks):
            x = block(x, context, layer)
        return x


def share_input(x: Tensor, linear: Any) -> Tensor | Int8Rows:
    """Return the input of several linear layers, quantized once if their weights are in int8."""
    return quantize_rows_int8(x) if linear.weight.dtype == torch.int8 else x


def at_columns(x: Tensor, columns: Tensor) -> Tensor:  # [B, R, W], [B, S] -> [B, S, W]
    """Return the hidden states at the given columns of each row."""
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))
