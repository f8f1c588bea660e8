"""Products in fp8: rows quantised each by its own scale, and scales that are multiplied back later.

A product with unit scales and fast accumulation is the quickest a GPU has; a scale per row and per column
inside of it costs a fifth more. So it is left raw: `Raw` carries its scales to the kernel that reads it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lastword.models.kernels.compiled import compiled, compiles, has_float8, power_of_two

if TYPE_CHECKING:
    import triton.language as tl


FLOAT8, LARGEST = torch.float8_e4m3fn, 448.0


class Quantised(NamedTuple):
    """Rows in fp8: `values` times `scale` is what they stand for."""

    values: Tensor  # [N, W] e4m3
    scale: Tensor  # [N] float32


class Raw(NamedTuple):
    """A product before its scales: `values` times the scale of its row and of its column."""

    values: Tensor  # [N, O] bfloat16, or float32
    row_scale: Tensor  # [N] float32
    column_scale: Tensor  # [O] float32


def scaled(product: Tensor | Raw, dtype: torch.dtype) -> Tensor:
    """What a product stands for."""
    if isinstance(product, Tensor):
        return product
    wide = product.values.float() * product.row_scale[:, None] * product.column_scale
    return wide.to(dtype)


def parts(product: Tensor | Raw) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Values and scales, as kernels take them."""
    return (product, None, None) if isinstance(product, Tensor) else product


def quantise(x: Tensor) -> Quantised:  # [N, W]
    """Every row by the scale that makes its largest number fp8's largest."""
    if not (compiles(x) and has_float8(x.device)):
        return quantise_plain(x)
    x = x.contiguous()
    rows, width = x.shape
    found = empty_quantised(x)
    block = power_of_two(width)
    warps = min(32, max(4, block // 1024))
    compiled(_quantise)[(rows,)](x, *found, width, BLOCK=block, num_warps=warps)
    return found


def empty_quantised(like: Tensor) -> Quantised:
    """Room for a kernel to write to."""
    return Quantised(torch.empty_like(like, dtype=FLOAT8), like.new_empty(len(like), dtype=torch.float32))


def quantise_plain(x: Tensor) -> Quantised:
    """The same in torch."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    return Quantised((wide / scale[:, None]).to(FLOAT8), scale)


def multiply(x: Quantised, weight: Tensor, scale: Tensor) -> Raw:  # [N, I], [O, I], [O]
    """Rows times a weight in fp8 whose rows have scales.

    Where fp8 cannot be multiplied (a CPU, an older GPU, sides that are no multiple of 16) the numbers are
    lifted to float32 first.
    """
    native = x.values.is_cuda and has_float8(x.values.device)
    if native and weight.dtype == FLOAT8 and not any(side % 16 for side in weight.shape):
        one = _one(x.values.device)
        values = torch._scaled_mm(
            x.values,
            weight.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    else:
        values = x.values.float() @ weight.float().t()
    return Raw(values, x.scale, scale)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _quantise(
    x: tl.tensor, values: tl.tensor, scale: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    wide = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(wide), axis=0)
    unit = tl.where(largest > 0, largest / 448.0, 1.0)
    tl.store(scale + row, unit)
    tl.store(values + row * width + column, (wide / unit).to(tl.float8e4nv), mask=inside)
