"""Quantization of the linear layers of a model: fp8 on GPUs, int8 on CPUs."""

from __future__ import annotations

from torch import Tensor, nn

from lastword.models.kernels.float8 import apply_scales, float8_matmul, quantize_rows, quantize_rows_plain
from lastword.models.kernels.int8 import Int8Rows, int8_matmul, pack_weight, quantize_rows_int8, quantize_weight
from lastword.models.layers import BidirectionalTransformer

QUANTIZATIONS = ("fp8", "int8")


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


class Int8Linear(nn.Module):
    """A linear layer with weights in int8 and one scale per output; inputs are quantized with one scale per column.

    Several layers with the same input can share its quantization, see `share_input`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = nn.Parameter(linear.weight.new_empty(len(linear.weight)), requires_grad=False)
        if not linear.weight.is_meta:
            self.set_weight(linear.weight.detach())

    def set_weight(self, weight: Tensor) -> None:  # [O, I]
        """Quantize and store a weight."""
        values, scale = quantize_weight(weight)
        self.weight = nn.Parameter(pack_weight(values), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor | Int8Rows) -> Tensor:  # [..., I] -> [..., O]
        x = quantize_rows_int8(x) if isinstance(x, Tensor) else x
        output = int8_matmul(x, self.weight, self.scale)
        return output if self.bias is None else output.add_(self.bias)


def quantize(network: BidirectionalTransformer, quantization: str) -> None:
    """Replace linear layers: those of transformer blocks for fp8, those and the output head for int8.

    Embedding and norms keep their dtype. For int8 the network may be on the meta device and loaded later.
    """
    network.packed = None  # it refers to the weights that are replaced
    kind = Float8Linear if quantization == "fp8" else Int8Linear
    for module in [*network.blocks.modules()]:
        for name, linear in [*module.named_children()]:
            if isinstance(linear, nn.Linear):
                setattr(module, name, kind(linear))
    if kind is Int8Linear:
        network.head = Int8Linear(network.head)  # type: ignore[assignment]


def is_float8(network: BidirectionalTransformer) -> bool:
    """Return whether the weights of the transformer blocks are in fp8."""
    return isinstance(network.get_submodule("blocks.0.attention.query"), Float8Linear)
