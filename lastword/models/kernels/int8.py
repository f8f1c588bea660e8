"""Matrix products of int8 weights and activations on a CPU: weights have one scale per output, activations per column.

oneDNN multiplies unsigned activations by signed weights. Without VNNI instructions it adds two products in 16 bits,
which overflows if activations have 8 bits; they have 7 bits on such a CPU, so products are exact on all CPUs.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_NUMBERS = 2**18  # weights that are quantized at a time, which fit into the cache of a core: five times as fast


class Int8Rows(NamedTuple):
    """Quantized activations, which stand for `(values - max_level() - 1) * scale`."""

    values: Tensor  # [..., I] uint8
    scale: Tensor  # [..., 1] float32
    dtype: torch.dtype  # of the activations, and of their products


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:  # [O, I] -> [O, I] int8, [O]
    """Round every row to int8 with a scale in float32, a part of the rows at a time."""
    # glibc keeps freed memory under 32 MB. Between the packed weights it would be lost, which doubles their memory.
    values = torch.empty(max(weight.numel(), 2**26), dtype=torch.int8)[: weight.numel()].view_as(weight)
    scale = weight.new_empty(len(weight), dtype=torch.float32)
    size = max(1, MAX_NUMBERS // weight.shape[1])
    for part, to, unit in zip(*(torch.split(tensor, size) for tensor in (weight, values, scale))):
        wide = part.float()
        unit.copy_((wide.abs().amax(-1) / 127).clamp(min=1e-30))
        to.copy_((wide / unit[:, None]).round_())
    return values, scale


def pack_weight(values: Tensor) -> Tensor:  # [O, I] int8
    """Return an int8 weight in the layout of oneDNN, or unchanged if products are computed without it."""
    return values if _onednn_level() is None else torch.ops.onednn.qlinear_prepack(values, None)


def quantize_rows_int8(x: Tensor) -> Int8Rows:  # [..., I]
    """Quantize activations with one scale per column of the canvas."""
    level = max_level()
    wide = x.float()
    buffer = wide.abs()
    scale = (buffer.amax(-1, keepdim=True) / level).clamp_(min=1e-30)
    # The conversion to uint8 truncates: half a level more rounds. One buffer for all steps saves a third of the time.
    values = torch.mul(wide, scale.reciprocal(), out=buffer).add_(level + 1.5).to(torch.uint8)
    return Int8Rows(values, scale, x.dtype)


def int8_matmul(x: Int8Rows, weight: Tensor, scale: Tensor) -> Tensor:  # [..., I], packed [O, I], [O] -> [..., O]
    """Multiply quantized activations by the transpose of a weight of `pack_weight`."""
    if weight.layout == torch.strided:
        return int8_matmul_plain(x, weight, scale)
    product = torch.ops.onednn.qlinear_pointwise(
        x.values, 1.0, max_level() + 1, weight, scale, _zeros(len(scale)), None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product.mul_(x.scale).to(x.dtype)


def int8_matmul_plain(x: Int8Rows, values: Tensor, scale: Tensor) -> Tensor:  # [..., I], [O, I], [O] -> [..., O]
    """Compute `int8_matmul` in float32, with a weight that is not packed."""
    levels = x.values.float() - (max_level() + 1)
    return (F.linear(levels, values.float()) * scale * x.scale).to(x.dtype)


def max_level() -> int:
    """Return the largest quantized activation: 127, or 63 on a CPU whose products would overflow."""
    return _onednn_level() or 127


@cache
def _onednn_level() -> int | None:
    """Return the largest activation whose products by oneDNN are exact; None if there is none, or no oneDNN."""
    for level in (127, 63):
        weight = torch.full((64, 256), 127, dtype=torch.int8)
        values = torch.full((4, 256), 2 * level + 1, dtype=torch.uint8)
        try:
            packed = torch.ops.onednn.qlinear_prepack(weight, None)
            product = torch.ops.onednn.qlinear_pointwise(
                values, 1.0, level + 1, packed, torch.ones(64), _zeros(64), None, 1.0, 0, torch.float32, "none", [], ""
            )
        except (AttributeError, RuntimeError):  # built without oneDNN
            return None
        if bool((product == 256 * 127 * level).all()):
            return level
    return None


@cache
def _zeros(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)
