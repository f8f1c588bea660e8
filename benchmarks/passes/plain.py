"""The decoding loop that the authors of LLaDA and Dream describe, in plain PyTorch modules, as a baseline.

Every forward pass computes the whole canvas in every layer, without a cache, the logits of all tokens and a
float64 softmax over them, and unmasks one token. The baseline is independent of our models and decoding loop.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastword.models.layers import TransformerConfig


class PlainNorm(nn.Module):
    """RMSNorm in float32, without fused operations."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class PlainLayer(nn.Module):
    """Attention over all tokens, then the gated MLP: seven matrix products without fusion."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.shape, width = shape, shape.hidden_size
        keys = shape.num_kv_heads * shape.head_dim
        self.norms = nn.ModuleList(PlainNorm(width, shape.norm_eps) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(width, out, bias=shape.qkv_bias) for out in (width, keys, keys))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, shape.intermediate_size, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.intermediate_size, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [1, L, W], [L, D]
        y = self.norms[0](x)
        query, key, value = (
            x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)
            for x in (self.query(y), self.key(y), self.value(y))
        )
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class PlainModel(nn.Module):
    """A bidirectional transformer that returns the logits of every token."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(PlainLayer(shape) for _ in range(shape.num_layers))
        self.norm = PlainNorm(shape.hidden_size, shape.norm_eps)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # [1, L] -> [1, L, V]
        x = self.embedding(tokens)
        half = torch.arange(0, self.shape.head_dim, 2, device=x.device).float()
        frequencies = 1.0 / self.shape.rope_theta ** (half / self.shape.head_dim)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device).float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings in float32."""
    wide = x.float()
    left, right = wide.chunk(2, -1)
    return (wide * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


@torch.no_grad()
def plain_pass(model: PlainModel, tokens: Tensor, mask: int, count: int = 1) -> Tensor:
    """Unmask the `count` tokens with the highest confidence in one forward pass."""
    logits = model(tokens)  # [1, L, V]
    best = logits.argmax(-1)
    probability = F.softmax(logits.to(torch.float64), -1)
    confidence = probability.gather(-1, best[..., None])[..., 0]
    confidence = torch.where(tokens == mask, confidence, -torch.inf)
    chosen = torch.zeros_like(tokens, dtype=torch.bool)
    for row in range(len(tokens)):
        chosen[row, confidence[row].topk(count).indices] = True
    return torch.where(chosen & (tokens == mask), best, tokens)
