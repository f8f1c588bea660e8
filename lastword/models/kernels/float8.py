"""Matrix products in fp8: every row is quantized with one scale, and the scales are applied after the product.

The fastest fp8 product of a GPU has no scales and fast accumulation; scales per row and column take a fifth longer.
So an `UnscaledProduct` carries its scales, and the kernel that reads it applies them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lastword.models.kernels import compile_kernel, has_float8, power_of_two, uses_triton

if TYPE_CHECKING:
    import triton.language as tl


FLOAT8, FLOAT8_MAX = torch.float8_e4m3fn, 448.0


class Float8Rows(NamedTuple):
    """Rows in fp8, which represent `values` times `scale`."""

    values: Tensor  # [N, W] e4m3
    scale: Tensor  # [N] float32


class UnscaledProduct(NamedTuple):
    """A matrix product that represents `values` times `row_scale` times `column_scale`."""

    values: Tensor  # [N, O] bfloat16 or float32
    row_scale: Tensor  # [N] float32
    column_scale: Tensor  # [O] float32


def apply_scales(product: Tensor | UnscaledProduct, dtype: torch.dtype) -> Tensor:
    """Return a product in `dtype` with its scales applied; a plain tensor is returned as it is."""
    if isinstance(product, Tensor):
        return product
    return (product.values.float() * product.row_scale[:, None] * product.column_scale).to(dtype)


def split_scales(product: Tensor | UnscaledProduct) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the values, row scales and column scales of a product; a plain tensor has None as scales."""
    return (product, None, None) if isinstance(product, Tensor) else product


def quantize_rows(x: Tensor) -> Float8Rows:  # [N, W]
    """Quantize every row with the scale that maps its largest magnitude to the largest fp8 number."""
    if not (uses_triton(x) and has_float8(x.device)):
        return quantize_rows_plain(x)
    x = x.contiguous()
    rows, width = x.shape
    quantized = empty_float8(x)
    block = power_of_two(width)
    warps = min(32, max(4, block // 1024))
    compile_kernel(_quantize_rows)[(rows,)](x, *quantized, width, BLOCK=block, num_warps=warps)
    return quantized


def empty_float8(like: Tensor) -> Float8Rows:
    """Return uninitialized fp8 rows of the shape of `like`, as output of a kernel."""
    return Float8Rows(torch.empty_like(like, dtype=FLOAT8), like.new_empty(len(like), dtype=torch.float32))


def quantize_rows_plain(x: Tensor) -> Float8Rows:
    """Quantize every row as `quantize_rows` does, with PyTorch instead of a kernel."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    scale = torch.where(largest > 0, largest / FLOAT8_MAX, 1.0)
    return Float8Rows((wide / scale[:, None]).to(FLOAT8), scale)


def float8_matmul(x: Float8Rows, weight: Tensor, scale: Tensor) -> UnscaledProduct:  # [N, I], [O, I], [O]
    """Multiply quantized rows by the transpose of an fp8 weight, which has one scale per output.

    Where this is not possible in fp8 (CPUs, older GPUs, sizes that are not multiples of 16), both are converted to
    float32 first.
    """
    native = x.values.is_cuda and has_float8(x.values.device)
    if native and weight.dtype == FLOAT8 and not any(side % 16 for side in weight.shape):
        one = _one(x.values.device)
        values = torch._scaled_mm(
            x.values, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    else:
        values = x.values.float() @ weight.float().t()
    return UnscaledProduct(values, x.scale, scale)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _quantize_rows(x, values, scale, width, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    wide = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(wide), axis=0)
    unit = tl.where(largest > 0, largest / 448.0, 1.0)
    tl.store(scale + row, unit)
    tl.store(values + row * width + column, (wide / unit).to(tl.float8e4nv), mask=inside)
