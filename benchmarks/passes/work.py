"""Work: the least arithmetic and the least memory traffic of passes of a shape."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.models.layers import TransformerConfig
from lastword.models.native import NativeModel


@dataclass(frozen=True)
class Work:
    """Columns through the layers, pairs of columns in attention, columns through the head."""

    columns: int | float
    squares: int | float  # columns times the columns each attended to
    read: int | float  # columns whose logits were asked for

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(self.columns + other.columns, self.squares + other.squares, self.read + other.read)

    def flops(self, shape: TransformerConfig) -> int | float:
        """Multiplications and additions of the matrix products, the layers' and the head's.

        >>> from benchmarks.passes.shapes import LLADA_8B
        >>> round(Work(1924, 1924**2, 1024).flops(LLADA_8B.shape) / 1e12, 1)
        29.9
        """
        per_column = 2 * shape.num_layers * layer_weights(shape)
        attention = 4 * shape.num_layers * shape.hidden_size
        head = 2 * shape.vocab_size * shape.hidden_size
        return self.columns * per_column + self.squares * attention + self.read * head

    def traffic(self, model: NativeModel, passes: int = 1, row_passes: int | None = None) -> int | float:
        """Bytes: every weight once a pass; in each row's pass the keys and values it attends to, once."""
        shape = model.network.shape
        size = model.network.embedding.weight.element_size()
        attended = self.squares / self.columns if self.columns else 0  # by a column, on average
        kept = 2 * shape.num_layers * shape.num_kv_heads * shape.head_width * size
        rows = passes if row_passes is None else row_passes
        return passes * weight_bytes(model) + rows * attended * kept


def layer_weights(shape: TransformerConfig) -> int:
    """Numbers in the matrices of one layer."""
    attention = shape.hidden_size * (2 * shape.hidden_size + 2 * shape.num_kv_heads * shape.head_width)
    return attention + 3 * shape.hidden_size * shape.intermediate_size


def weight_bytes(model: NativeModel) -> int:
    """What a pass reads of the weights: all but the embedding, of which it reads a few rows."""
    every = [*model.parameters(), *model.buffers()]
    embedding = model.network.embedding.weight
    total = sum(tensor.numel() * tensor.element_size() for tensor in every)
    rows = 0 if model.network.shape.tied_head else embedding.numel() * embedding.element_size()
    return total - rows
