"""add_norm: add what a half layer said, and norm the sum, in one read of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.models.kernels.compiled import compiled, compiles, power_of_two
from lastword.models.kernels.float8 import (
    Quantised,
    Raw,
    empty_quantised,
    parts,
    quantise_plain,
    scaled,
)

if TYPE_CHECKING:
    import triton.language as tl


def add_norm(
    x: Tensor,  # [N, W]
    delta: Tensor | Raw | None,  # [N, W]
    weight: Tensor,  # [W]
    eps: float,
    *,
    quantised: bool = False,
) -> tuple[Tensor, Tensor | Quantised]:
    """The sum in x's dtype, and its RMS norm: in float32 inside, cast back, then times the weight.

    With `quantised` the norm is left in fp8.
    """
    if not compiles(x):
        return add_norm_plain(x, delta, weight, eps, quantised=quantised)
    rows, width = x.shape
    values, row_scale, column_scale = (None,) * 3 if delta is None else parts(delta)
    total = x if delta is None else torch.empty_like(x)
    normed = empty_quantised(x) if quantised else torch.empty_like(x)
    target, scale = normed if isinstance(normed, Quantised) else (normed, None)
    block = power_of_two(width)
    compiled(_add_norm)[(rows,)](
        x, values, row_scale, column_scale, weight, total, target, scale, width, eps,
        BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return total, normed


def add_norm_plain(
    x: Tensor, delta: Tensor | Raw | None, weight: Tensor, eps: float, *, quantised: bool = False
) -> tuple[Tensor, Tensor | Quantised]:
    """The same in torch."""
    total = x if delta is None else x + scaled(delta, x.dtype)
    normed = weight * F.rms_norm(total, total.shape[-1:], eps=eps)
    return total, quantise_plain(normed) if quantised else normed


def _add_norm(
    x: tl.tensor,
    delta: tl.tensor,
    row_scale: tl.tensor,
    column_scale: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    scale: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if delta is not None:
        added = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        if row_scale is not None:
            added *= tl.load(row_scale + row)
            added *= tl.load(column_scale + column, mask=inside, other=0.0)
            added = added.to(x.dtype.element_ty).to(tl.float32)
        whole = (wide + added).to(x.dtype.element_ty)
        tl.store(total + at, whole, mask=inside)
        wide = whole.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    even = (wide * factor).to(x.dtype.element_ty).to(tl.float32)
    by = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    even = (even * by).to(x.dtype.element_ty)
    if scale is None:
        tl.store(normed + at, even, mask=inside)
    else:
        even = even.to(tl.float32)
        largest = tl.max(tl.abs(even), axis=0)
        unit = tl.where(largest > 0, largest / 448.0, 1.0)
        tl.store(scale + row, unit)
        tl.store(normed + at, (even / unit).to(tl.float8e4nv), mask=inside)
