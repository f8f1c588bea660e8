"""Fused kernels between the matrix products of a layer: residual with RMS norm, rotary embedding, SiLU gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.models.kernels import compile_kernel, power_of_two, uses_triton
from lastword.models.kernels.float8 import (
    FLOAT8,
    Float8Rows,
    UnscaledProduct,
    apply_scales,
    empty_float8,
    quantize_rows_plain,
    split_scales,
)

if TYPE_CHECKING:
    import triton.language as tl

MAX_HEADS = 8  # heads that one program rotates
GATE_BLOCK = 2048  # numbers of a row per program, unless the row is quantized


def add_rms_norm(
    x: Tensor,  # [N, W]
    delta: Tensor | UnscaledProduct | None,  # [N, W]
    weight: Tensor,  # [W]
    eps: float,
    *,
    quantize: bool = False,
) -> tuple[Tensor, Tensor | Float8Rows]:
    """Return `x + delta` and its RMS norm, which is computed in float32, cast back, then multiplied by the weight.

    Both have x's dtype; with `quantize` the norm is returned in fp8.
    """
    if not uses_triton(x):
        total = x if delta is None else x + apply_scales(delta, x.dtype)
        norm = weight * F.rms_norm(total, total.shape[-1:], eps=eps)
        return total, quantize_rows_plain(norm) if quantize else norm
    rows, width = x.shape
    values, row_scale, column_scale = (None,) * 3 if delta is None else split_scales(delta)
    total = x if delta is None else torch.empty_like(x)
    normed = empty_float8(x) if quantize else torch.empty_like(x)
    target, scale = normed if isinstance(normed, Float8Rows) else (normed, None)
    block = power_of_two(width)
    compile_kernel(_add_rms_norm)[(rows,)](
        x, values, row_scale, column_scale, weight, total, target, scale, width, eps,
        BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    return total, normed


def add_residual(x: Tensor, delta: Tensor | UnscaledProduct | None, weight: Tensor, eps: float) -> Tensor:
    """Return `x + delta`, on a GPU with the kernel of `add_rms_norm`."""
    if uses_triton(x):
        return add_rms_norm(x, delta, weight, eps)[0]
    return x if delta is None else x + apply_scales(delta, x.dtype)


def _add_rms_norm(
    x, delta, row_scale, column_scale, weight, total, normed, scale, width, eps, BLOCK: tl.constexpr
) -> None:
    """Compute one row per program, as described at `add_rms_norm`."""
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
        summed = (wide + added).to(x.dtype.element_ty)
        tl.store(total + at, summed, mask=inside)
        wide = summed.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    norm = (wide * factor).to(x.dtype.element_ty).to(tl.float32)
    factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    norm = (norm * factors).to(x.dtype.element_ty)
    if scale is None:
        tl.store(normed + at, norm, mask=inside)
    else:
        norm = norm.to(tl.float32)
        largest = tl.max(tl.abs(norm), axis=0)
        unit = tl.where(largest > 0, largest / 448.0, 1.0)
        tl.store(scale + row, unit)
        tl.store(normed + at, (norm / unit).to(tl.float8e4nv), mask=inside)


def silu_mul(
    gate_up: Tensor | UnscaledProduct | list[Tensor],  # [N, 2M], or gate and up [N, M] in a list
    dtype: torch.dtype,
) -> Tensor | Float8Rows:  # [N, M]
    """Return silu(gate) * up in `dtype`, maybe in the memory of the gate; in fp8 for an `UnscaledProduct`."""
    if isinstance(gate_up, list):
        return F.silu(gate_up[0]).mul_(gate_up[1])
    values, row_scale, column_scale = split_scales(gate_up)
    if not uses_triton(values):
        gate, up = apply_scales(gate_up, dtype).chunk(2, -1)
        product = F.silu(gate) * up
        return product if row_scale is None else quantize_rows_plain(product)
    rows, width = values.shape[0], values.shape[1] // 2
    quantize = row_scale is not None
    # The output may have the stride of gate and up, because a matrix product reads rows with any stride.
    output = values.new_empty(rows, width, dtype=FLOAT8) if quantize else values[:, :width]
    scale = values.new_empty(rows, dtype=torch.float32) if quantize else None
    block = power_of_two(width) if quantize else min(GATE_BLOCK, power_of_two(width))
    compile_kernel(_silu_mul)[(rows, -(-width // block))](
        values, row_scale, column_scale, output, output.stride(0), scale, width,
        HALF=dtype == torch.float16, WIDE=dtype == torch.float32,
        BLOCK=block, num_warps=min(32, max(1, block // 512)),
    )  # fmt: skip
    return output if scale is None else Float8Rows(output, scale)


def _silu_mul(
    gate_up,
    row_scale,
    column_scale,
    output,
    stride,
    scale,
    width,
    HALF: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute `BLOCK` numbers of a row per program; the whole row if it is quantized."""
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
    gated = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    product = (gated * up).to(dtype)
    if scale is None:
        tl.store(output + row * stride + column, product, mask=inside)
    else:
        wide = product.to(tl.float32)
        largest = tl.max(tl.abs(wide), axis=0)
        unit = tl.where(largest > 0, largest / 448.0, 1.0)
        tl.store(scale + row, unit)
        tl.store(output + row * stride + column, (wide / unit).to(tl.float8e4nv), mask=inside)


def rotate_and_store(
    qkv: Tensor | UnscaledProduct | list[Tensor],  # [N, (H + 2K) * D] queries, keys and values side by side, or a list
    cos: Tensor,  # [N, D/2], in the dtype the rotation is computed in
    sin: Tensor,
    slots: Tensor,  # [N] index of each column in `keys` and `values`
    keys: Tensor,  # [C, K, D]
    values: Tensor,
    heads: int,
    bias: Tensor | None = None,  # [(H + 2K) * D], only with an unscaled product
) -> Tensor:  # [N, H, D]
    """Rotate queries and keys, write keys and values to the storage, and return the queries.

    The dtype of `cos` is float32 for LLaDA and the model's dtype for Dream; every operation is rounded to it.
    """
    kv_heads, width = keys.shape[1:]
    if isinstance(qkv, list) or not uses_triton(split_scales(qkv)[0]) or not uses_triton(keys):
        if not isinstance(qkv, list):
            side_by_side = apply_scales(qkv, keys.dtype)
            side_by_side = side_by_side if bias is None else side_by_side + bias
            qkv = list(torch.split(side_by_side, [heads * width, kv_heads * width, kv_heads * width], -1))
        query, key, value = (part.view(len(part), -1, width) for part in qkv)
        keys[slots], values[slots] = rotate(key, cos[:, None], sin[:, None]), value
        return rotate(query, cos[:, None], sin[:, None])
    packed, row_scale, column_scale = split_scales(qkv)
    query = keys.new_empty(len(packed), heads, width)
    group = min(MAX_HEADS, heads & -heads, kv_heads & -kv_heads)
    grid, half = (len(packed), (heads + 2 * kv_heads) // group), power_of_two(width // 2)
    compile_kernel(_rotate_and_store)[grid](
        packed, row_scale, column_scale, bias, cos, sin, slots, query, keys, values,
        heads, kv_heads, width // 2,
        HEADS=group, HALF=half, num_warps=max(1, group * half // 256),
    )  # fmt: skip
    return query


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [..., D], [..., D/2]
    """Return queries or keys with the rotary embedding, which is computed in the dtype of the cosines."""
    # In place and by halves, because memory traffic limits the speed on a GPU.
    half, rotated = cos.shape[-1], x * torch.cat((cos, cos), -1)
    rotated[..., :half].sub_(x[..., half:] * sin)
    rotated[..., half:].add_(x[..., :half] * sin)
    return rotated.to(x.dtype)


def _rotate_and_store(
    qkv,
    row_scale,
    column_scale,
    bias,
    cos,
    sin,
    slots,
    query,
    keys,
    values,
    heads,
    kv_heads,
    half,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Compute `HEADS` heads of one column per program, which are all queries, all keys or all values."""
    column = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    head = first + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    inside = (head >= 0)[:, None] & (pair < half)[None, :]
    offset = head[:, None] * 2 * half + pair[None, :]
    at = qkv + column * (heads + 2 * kv_heads) * 2 * half + offset
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if row_scale is not None:
        by_row = tl.load(row_scale + column)
        left *= by_row * tl.load(column_scale + offset, mask=inside, other=0.0)
        right *= by_row * tl.load(column_scale + half + offset, mask=inside, other=0.0)
        left = left.to(query.dtype.element_ty).to(tl.float32)
        right = right.to(query.dtype.element_ty).to(tl.float32)
    if bias is not None:
        left += tl.load(bias + offset, mask=inside, other=0.0).to(tl.float32)
        right += tl.load(bias + half + offset, mask=inside, other=0.0).to(tl.float32)
        left = left.to(query.dtype.element_ty).to(tl.float32)
        right = right.to(query.dtype.element_ty).to(tl.float32)
    slot = tl.load(slots + column).to(tl.int64)
    if first >= heads + kv_heads:
        to = values + (slot * kv_heads - heads - kv_heads) * 2 * half + offset
        tl.store(to, left.to(query.dtype.element_ty), mask=inside)
        tl.store(to + half, right.to(query.dtype.element_ty), mask=inside)
    else:
        # Every product is rounded to the dtype of the rotation, as in `rotate`.
        c = tl.load(cos + column * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + column * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
        left_cos = (left * c).to(cos.dtype.element_ty).to(tl.float32)
        right_sin = (right * s).to(cos.dtype.element_ty).to(tl.float32)
        right_cos = (right * c).to(cos.dtype.element_ty).to(tl.float32)
        left_sin = (left * s).to(cos.dtype.element_ty).to(tl.float32)
        rotated_left = (left_cos - right_sin).to(query.dtype.element_ty)
        rotated_right = (right_cos + left_sin).to(query.dtype.element_ty)
        if first >= heads:
            to_key = keys + (slot * kv_heads - heads) * 2 * half + offset
            tl.store(to_key, rotated_left, mask=inside)
            tl.store(to_key + half, rotated_right, mask=inside)
        else:
            to_query = query + column * heads * 2 * half + offset
            tl.store(to_query, rotated_left, mask=inside)
            tl.store(to_query + half, rotated_right, mask=inside)
