"""Quantize the linear layers of a model to fp8."""

from __future__ import annotations

from torch import Tensor, nn

from lastword.models.kernels.float8 import multiply, quantise, quantise_plain, scaled
from lastword.models.layers import BidirectionalTransformer


class Float8Linear(nn.Module):
    """`weight` in e4m3 with a scale for every output; inputs are quantised with a scale for every column.

    Embedding, norms and head keep their dtype. GPUs of compute capability 8.9 and above multiply in fp8;
    elsewhere the same numbers are lifted to float32 first, which is right and no faster.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantise_plain(linear.weight.detach())
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:  # [..., I] -> [..., O]
        product = scaled(multiply(quantise(x.flatten(0, -2)), self.weight, self.scale), x.dtype)
        product = product if self.bias is None else product + self.bias
        return product.view(*x.shape[:-1], -1)


def to_float8(network: BidirectionalTransformer) -> None:
    """Quantise the products of every layer, each replaced before the next is made."""
    network.packed = None  # it would keep what is replaced
    for half in [*network.blocks.modules()]:
        for name, linear in [*half.named_children()]:
            if isinstance(linear, nn.Linear):
                setattr(half, name, Float8Linear(linear))


def is_float8(network: BidirectionalTransformer) -> bool:
    """Are the layers' weights in fp8?"""
    return isinstance(network.get_submodule("blocks.0.attention.query"), Float8Linear)
