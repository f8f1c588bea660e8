"""Quantization of the linear layers of a model to fp8."""

from __future__ import annotations

from torch import Tensor, nn

from lastword.models.kernels.float8 import apply_scales, float8_matmul, quantize_rows, quantize_rows_plain
from lastword.models.layers import BidirectionalTransformer


class Float8Linear(nn.Module):
    """A linear layer with weights in e4m3 and one scale per output; inputs are quantized with one scale per column.

    GPUs of compute capability 8.9 and above multiply in fp8. On other devices weights and inputs are converted to
    float32 first, which is not faster than an `nn.Linear`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantize_rows_plain(linear.weight.detach())
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:  # [..., I] -> [..., O]
        product = float8_matmul(quantize_rows(x.flatten(0, -2)), self.weight, self.scale)
        output = apply_scales(product, x.dtype)
        output = output if self.bias is None else output + self.bias
        return output.view(*x.shape[:-1], -1)


def to_float8(network: BidirectionalTransformer) -> None:
    """Replace the linear layers of transformer blocks by `Float8Linear`; embedding, norms and head keep their dtype."""
    network.packed = None  # it refers to the weights that are replaced
    for module in [*network.blocks.modules()]:
        for name, linear in [*module.named_children()]:
            if isinstance(linear, nn.Linear):
                setattr(module, name, Float8Linear(linear))


def is_float8(network: BidirectionalTransformer) -> bool:
    """Return whether the weights of the transformer blocks are in fp8."""
    return isinstance(network.get_submodule("blocks.0.attention.query"), Float8Linear)
