"""PackedNetwork: the transformer of layers.py on packed columns, in nine kernels a layer.

Shapes in comments: N packed columns, W the model's width, H heads, K key-value heads, D numbers per head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastword.kernels.attention import attend
from lastword.kernels.float8 import Quantised, Raw, multiply, quantise
from lastword.kernels.gate import gated
from lastword.kernels.norm import add_norm
from lastword.kernels.rotary import rotate_and_store
from lastword.memory.key_values import RowKeyValues
from lastword.models.float8 import Float8Linear
from lastword.models.layers import BidirectionalTransformer, Block, at_least_float32
from lastword.models.packing import Packing

# Gate and up are six times as wide as a state: they are made this many numbers at a time, 128 MB in bf16.
NUMBERS_AT_ONCE = 2**26


class Product:
    """Several products of one input as one; their weights become parts of a single tensor."""

    def __init__(self, *linears: nn.Module) -> None:
        self.float8 = isinstance(linears[0], Float8Linear)
        self.weight = _together(linears, "weight")
        self.scale = _together(linears, "scale") if self.float8 else None
        self.bias = None if linears[0].bias is None else _together(linears, "bias")

    def __call__(self, x: Tensor | Quantised) -> Tensor | Raw:  # [N, I] -> [N, O]
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)  # type: ignore[arg-type]
        x = quantise(x) if isinstance(x, Tensor) else x
        return multiply(x, self.weight, self.scale)


class Layer(NamedTuple):
    """One block's products."""

    block: Block
    qkv: Product
    out: Product
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, block: Block) -> Layer:
        attention, mlp = block.attention, block.mlp
        return cls(
            block,
            Product(attention.query, attention.key, attention.value),
            Product(attention.out),
            Product(mlp.gate, mlp.up),
            Product(mlp.down),
        )


class PackedNetwork:
    """A network's own weights, used on packed columns; nothing in a pass waits for the device.

    Norms, rotations and gates are kernels of their own and so is attention, which reads keys and values
    where the memory has them. In fp8 a kernel quantises what it writes for the next product, and multiplies
    the scales of the last one back into what it reads.
    """

    @torch.no_grad()
    def __init__(self, network: BidirectionalTransformer) -> None:
        self.shape, self.embedding, self.norm = network.shape, network.embedding, network.norm
        self.layers = [Layer.of(block) for block in network.blocks]  # type: ignore[arg-type]
        exponents = torch.arange(
            0, self.shape.head_width, 2, device=network.embedding.weight.device
        ).float()
        self._frequencies = 1.0 / self.shape.rope_theta ** (exponents / self.shape.head_width)

    @classmethod
    def of(cls, network: BidirectionalTransformer) -> PackedNetwork:
        """The one that the network keeps. It goes where weights are moved, cast or quantised."""
        kept = network.packed
        if not isinstance(kept, cls) or not kept.current:
            network.packed = kept = None
            network.packed = kept = cls(network)
        return kept

    @property
    def current(self) -> bool:
        """Are these still the network's weights?"""
        return all(
            layer.qkv.weight.data_ptr() == layer.block.attention.query.weight.data_ptr()
            for layer in self.layers
        )

    def hidden(self, packing: Packing, memory: RowKeyValues | None) -> Tensor:  # [N, W]
        """States of the packed columns before the final norm."""
        shape, rows, eps = self.shape, packing.rows, self.shape.norm_eps
        x: Tensor = self.embedding(packing.tokens)
        cos, sin = self._rotation(packing.positions, x.dtype)
        like = x.new_empty(len(x), shape.kv_heads, shape.head_width)
        store = (like, torch.empty_like(like))
        delta: Tensor | Raw | None = None
        for number, (block, qkv, out, gate_up, down) in enumerate(self.layers):
            if memory is not None:
                store = memory.store(number, shape.kv_heads, like)
            x, normed = add_norm(x, delta, block.attention_norm.weight, eps, quantised=qkv.float8)
            bias = qkv.bias if qkv.float8 else None
            query = rotate_and_store(qkv(normed), cos, sin, rows.slots, *store, shape.heads, bias)
            delta = out(attend(query, *store, rows).flatten(1))
            x, normed = add_norm(x, delta, block.mlp_norm.weight, eps, quantised=gate_up.float8)
            del query, delta  # of a probe's columns 16 MB each
            delta = _joined(
                [down(gated(gate_up(part), x.dtype)) for part in _some_at_once(normed, gate_up)]
            )
        return add_norm(x, delta, self.norm.weight, eps)[0]

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self._frequencies  # [N, D/2]
        working = at_least_float32(dtype) if self.shape.rotate_in_float32 else dtype
        return angles.cos().to(working), angles.sin().to(working)


def _some_at_once(x: Tensor | Quantised, product: Product) -> list[Tensor] | list[Quantised]:
    """Few columns as they are; of many, equal parts whose product is not too large."""
    columns = x if isinstance(x, Tensor) else x.values
    count = len(columns)
    parts = -(-count * len(product.weight) // NUMBERS_AT_ONCE)
    size = max(1, -(-count // max(1, parts)))
    if isinstance(x, Tensor):
        return [*torch.split(x, size)]
    return [
        Quantised(*part) for part in zip(torch.split(x.values, size), torch.split(x.scale, size))
    ]


def _joined(parts: list[Tensor | Raw]) -> Tensor | Raw:
    """Parts of columns as one."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    values, scales, (column_scale, *_) = zip(*parts)
    return Raw(torch.cat(values), torch.cat(scales), column_scale)


def _together(linears: tuple[nn.Module, ...], name: str) -> Tensor:
    """One tensor of the linears' parameters, which become views of it."""
    parameters: list[nn.Parameter] = [getattr(linear, name) for linear in linears]
    if len(parameters) == 1:
        return parameters[0].data
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(p) for p in parameters])):
        parameter.data = part
    return whole
