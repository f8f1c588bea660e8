"""The bidirectional transformer LLaDA and Dream share: pre-norm, rotary positions, gated MLP.

What differs between the two is data (`Shape`) and lives in llada.py and dream.py. Shapes in
comments: B rows, L columns of the canvas, R columns recomputed in this pass, S columns read,
H heads, D numbers per head, W the model's width.
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
from lastword.models.storage import RowStorage

# Rows of unequal length make a mask, and as they finish every pass has a shape of its own. cuDNN, which
# torch prefers on recent GPUs, plans anew for each: on an H200 that cost four times the pass itself.
FOR_ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class TransformerConfig:
    """Everything about an architecture that is not a weight."""

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
    # LLaDA rotates queries and keys in float32 and casts back; Dream casts the rotation to the
    # activations' dtype first. In bf16 the two differ in most logits.
    rotate_in_float32: bool

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads) or self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"a width of {self.hidden_size} with {self.num_heads} heads and {self.num_kv_heads} "
                "key-value heads was "
                "given; heads must split the width into even parts, and key-value heads the heads"
            )

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        shared = self.head_width * self.num_kv_heads
        attention = 2 * self.hidden_size * (self.hidden_size + shared)
        bias = self.hidden_size + 2 * shared if self.qkv_bias else 0
        layer = attention + bias + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        ends = (1 if self.tied_head else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * layer + ends + self.hidden_size


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Where halves are too coarse to compute in."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Scale by the root of the mean square, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # The weight multiplies after the cast back, as both families do; torch's own multiplies before.
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


@dataclass(frozen=True, eq=False)  # hashed by identity: torch.compile hashes what it calls
class Rotation:
    """Cosines and sines of the rotary embedding [B, 1, R, D], made once per pass."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, shape: TransformerConfig, dtype: torch.dtype) -> Rotation:
        # Frequencies stay float32 whatever the model's dtype: rounding them moves far positions.
        exponents = torch.arange(0, shape.head_width, 2, device=positions.device).float()
        frequencies = 1.0 / shape.rope_theta ** (exponents / shape.head_width)  # [D/2]
        angles = positions[..., None].float() * frequencies  # [B, R, D/2]
        angles = torch.cat((angles, angles), dim=-1)[:, None]  # [B, 1, R, D]
        working = at_least_float32(dtype) if shape.rotate_in_float32 else dtype
        return cls(angles.cos().to(working), angles.sin().to(working))

    def at(self, columns: Tensor) -> Rotation:  # [B, S]
        """The rotation of some of the columns only."""
        where = columns[:, None, :, None].expand(-1, -1, -1, self.cos.shape[-1])
        return Rotation(self.cos.gather(2, where), self.sin.gather(2, where))

    def __call__(self, x: Tensor) -> Tensor:  # [B, H, R, D]
        # In place, half by half: on a GPU this is all reading and writing of memory.
        half, turned = x.shape[-1] // 2, x * self.cos
        turned[..., :half].sub_(x[..., half:] * self.sin[..., :half])
        turned[..., half:].add_(x[..., :half] * self.sin[..., half:])
        return turned.to(x.dtype)


def fuse(backend: str = "inductor") -> None:
    """Compile norms and rotations, in this process and for every model.

    They are element by element and bound by memory, which every step of them reads and writes. Fused they
    round once where they rounded twice, so the last bit of a logit may differ.
    """
    for owner, name in ((RMSNorm, "forward"), (Rotation, "__call__")):
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=True, backend=backend))


class Attention(nn.Module):
    """Every column looks at every valid column; groups of query heads may share keys."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.num_kv_heads * shape.head_width
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.hidden_size, kv_width, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.hidden_size, kv_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, context: PassContext, layer: int) -> Tensor:  # [B, R, W]
        query = context.rotate(self._split(self.query(x)))
        key, value = context.rotate(self._split(self.key(x))), self.values(x)
        if context.memory is not None:
            key, value = context.memory.update(layer, context.columns, key, value)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        with nullcontext() if context.mask is None else sdpa_kernel(FOR_ANY_SHAPE):
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=context.mask, is_causal=context.causal
            )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def values(self, x: Tensor) -> Tensor:  # [B, R, W] -> [B, H, R, D]
        return self._split(self.value(x))

    def _split(self, y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], -1, self.shape.head_width).transpose(1, 2)


class GatedMLP(nn.Module):
    """The SiLU-gated feed-forward of both families."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention, then MLP, each behind its norm and added back."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = GatedMLP(shape)

    def forward(self, x: Tensor, context: PassContext, layer: int) -> Tensor:
        part = context.part(layer, x, lambda y: self.attention.values(self.attention_norm(y)))
        if part is None:
            x = x + self.attention(self.attention_norm(x), context, layer)
            return x + self.mlp(self.mlp_norm(x))
        x = x + part.filled(
            "attention", x, lambda y: self.attention(self.attention_norm(y), part.context, layer)
        )
        return x + part.filled("mlp", x, lambda y: self.mlp(self.mlp_norm(y)))


@dataclass(frozen=True)
class PassContext:
    """What every layer of one pass shares."""

    rotate: Rotation
    mask: Tensor | None  # [B, 1, 1, L] which keys may be seen; None: all
    columns: Tensor  # [B, R] the columns this pass recomputes
    memory: RowStorage | None
    causal: bool

    def part(self, layer: int, x: Tensor, values: Callable[[Tensor], Tensor]) -> LayerPart | None:
        """What the layer recomputes of the columns the pass carries; None: all of them."""
        if self.memory is None or (columns := self.memory.part(layer, x, values)) is None:
            return None
        return LayerPart(replace(self, rotate=self.rotate.at(columns), columns=columns), self.memory, layer)


@dataclass(frozen=True)
class LayerPart:
    """The columns one layer recomputes; what it says about the others is in memory."""

    context: PassContext
    memory: RowStorage
    layer: int

    def filled(self, half: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """What half a layer says about every column of x, computed at the part's columns only."""
        columns = self.context.columns
        picked = at_columns(x, columns)
        fresh = compute(picked) if columns.shape[1] else picked
        return self.memory.filled(self.layer, half, columns, fresh)


class BidirectionalTransformer(nn.Module):
    """Embedding, blocks, final norm, head; every column sees every valid column."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.tied_head:
            self.head.weight = self.embedding.weight
        self.packed: object = None  # the same weights, as packed.py lays them out

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BidirectionalTransformer:
        self.packed = None  # it would keep what is moved or cast
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def hidden(
        self,
        tokens: Tensor,  # [B, L]
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R]
        memory: RowStorage | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:  # [B, R, W]
        """States of the recomputed columns before the final norm.

        `causal` hides the columns to the right: Dream-style models are trained that way first.
        """
        rows, width = tokens.shape
        every = torch.arange(width, device=tokens.device).expand(rows, -1)
        columns = every if stale is None else stale
        # Positions count a row's own tokens, so padding on the left changes nothing but rounding.
        positions = every if valid is None else (valid.cumsum(-1) - 1).clamp(min=0)
        x = self.embedding(tokens.gather(1, columns))
        rotate = Rotation.of(positions.gather(1, columns), self.shape, x.dtype)
        mask = None if valid is None else valid[:, None, None, :]
        context = PassContext(rotate, mask, columns, memory, causal)
        for layer, block in enumerate(self.blocks):
            x = block(x, context, layer)
        return x

    def logits(self, hidden: Tensor, where: Tensor) -> Tensor:  # [B, R, W], [B, S] -> [B, S, V]
        """The head, at `where` of the recomputed columns only."""
        return self.head(self.norm(at_columns(hidden, where)))


def at_columns(x: Tensor, columns: Tensor) -> Tensor:  # [B, R, W], [B, S] -> [B, S, W]
    """The states at some columns of each row."""
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))
