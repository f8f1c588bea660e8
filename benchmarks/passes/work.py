"""The minimum arithmetic and memory traffic of forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.models.layers import TransformerConfig
from lastword.models.native import NativeModel


@dataclass(frozen=True)
class Work:
    """Amounts of work: tokens in the layers, pairs of tokens in attention, tokens in the head."""

    tokens: int | float
    attention_pairs: int | float  # tokens times the tokens that each attends to
    tokens_read: int | float  # tokens whose logits are computed

    def plus(self, other: Work) -> Work:
        """Return the sum of both amounts."""
        return Work(
            self.tokens + other.tokens,
            self.attention_pairs + other.attention_pairs,
            self.tokens_read + other.tokens_read,
        )

    def flops(self, shape: TransformerConfig) -> int | float:
        """Return the multiplications and additions of the matrix products in layers and head.

        >>> from benchmarks.passes.shapes import LLADA_8B
        >>> round(Work(1924, 1924**2, 1024).flops(LLADA_8B.shape) / 1e12, 1)
        29.9
        """
        per_token = 2 * shape.num_layers * layer_weights(shape)
        attention = 4 * shape.num_layers * shape.hidden_size
        head = 2 * shape.vocab_size * shape.hidden_size
        return self.tokens * per_token + self.attention_pairs * attention + self.tokens_read * head

    def traffic(self, model: NativeModel, passes: int = 1, row_passes: int | None = None) -> int | float:
        """Return the bytes read: every weight once per pass, and keys and values once per pass of a row."""
        shape = model.network.config
        size = model.network.embedding.weight.element_size()
        attended = self.attention_pairs / self.tokens if self.tokens else 0  # per token, on average
        state = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * size
        rows = passes if row_passes is None else row_passes
        return passes * weight_bytes(model) + rows * attended * state


def layer_weights(shape: TransformerConfig) -> int:
    """Return the number of weights in the matrices of a layer."""
    attention = shape.hidden_size * (2 * shape.hidden_size + 2 * shape.num_kv_heads * shape.head_dim)
    return attention + 3 * shape.hidden_size * shape.intermediate_size


def weight_bytes(model: NativeModel) -> int:
    """Return the bytes of weights that a forward pass reads: all except the embedding, which it reads in few rows."""
    tensors = [*model.parameters(), *model.buffers()]
    embedding = model.network.embedding.weight
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    rows = 0 if model.network.config.tied_head else embedding.numel() * embedding.element_size()
    return total - rows
