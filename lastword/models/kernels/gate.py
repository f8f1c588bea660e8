"""gated: the SiLU-gated half of an MLP, from gate and up side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.models.kernels.compiled import compiled, compiles, power_of_two
from lastword.models.kernels.float8 import FLOAT8, Quantised, Raw, parts, quantise_plain, scaled

if TYPE_CHECKING:
    import triton.language as tl


AT_ONCE = 2048  # numbers of a row that a program takes where a row is not quantised


def gated(gate_up: Tensor | Raw, dtype: torch.dtype) -> Tensor | Quantised:  # [N, 2M] -> [N, M]
    """silu(gate) * up in `dtype`, written over the gate; of a raw product, in fp8 again."""
    values, row_scale, column_scale = parts(gate_up)
    if not compiles(values):
        return gated_plain(gate_up, dtype)
    rows, width = values.shape[0], values.shape[1] // 2
    quantised = row_scale is not None
    # A product reads rows at any distance.
    found = values.new_empty(rows, width, dtype=FLOAT8) if quantised else values[:, :width]
    scale = values.new_empty(rows, dtype=torch.float32) if quantised else None
    block = power_of_two(width) if quantised else min(AT_ONCE, power_of_two(width))
    compiled(_gated)[(rows, -(-width // block))](
        values, row_scale, column_scale, found, found.stride(0), scale, width,
        HALF=dtype == torch.float16, WIDE=dtype == torch.float32,
        BLOCK=block, num_warps=min(32, max(1, block // 512)),
    )  # fmt: skip
    return found if scale is None else Quantised(found, scale)


def gated_plain(gate_up: Tensor | Raw, dtype: torch.dtype) -> Tensor | Quantised:
    """The same in torch."""
    gate, up = scaled(gate_up, dtype).chunk(2, -1)
    product = F.silu(gate) * up
    return product if isinstance(gate_up, Tensor) else quantise_plain(product)


def _gated(
    gate_up: tl.tensor,
    row_scale: tl.tensor,
    column_scale: tl.tensor,
    found: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    HALF: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Some columns of a row a program, or all of them where the row is quantised."""
    dtype: tl.constexpr = tl.float32 if WIDE else (tl.float16 if HALF else tl.bfloat16)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = gate_up + row * 2 * width + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    if row_scale is not None:
        by_row = tl.load(row_scale + row)
        gate *= by_row * tl.load(column_scale + column, mask=inside, other=0.0)
        up *= by_row * tl.load(column_scale + width + column, mask=inside, other=0.0)
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    opened = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    product = (opened * up).to(dtype)
    if scale is None:
        tl.store(found + row * stride + column, product, mask=inside)
    else:
        wide = product.to(tl.float32)
        largest = tl.max(tl.abs(wide), axis=0)
        unit = tl.where(largest > 0, largest / 448.0, 1.0)
        tl.store(scale + row, unit)
        tl.store(found + row * stride + column, (wide / unit).to(tl.float8e4nv), mask=inside)
