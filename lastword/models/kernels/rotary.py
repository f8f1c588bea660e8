"""rotate_and_store: turn queries and keys by their positions, and write keys and values to their store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lastword.models.kernels.compiled import compiled, compiles, power_of_two
from lastword.models.kernels.float8 import Raw, parts, scaled

if TYPE_CHECKING:
    import triton.language as tl


MOST_HEADS = 8  # that a program turns


def rotate_and_store(
    qkv: Tensor | Raw,  # [N, (H + 2K) * D] queries, keys and values side by side
    cos: Tensor,  # [N, D/2], in the dtype the rotation is computed in
    sin: Tensor,
    slots: Tensor,  # [N] where in the store a column's keys and values go
    keys: Tensor,  # [C, K, D]
    values: Tensor,
    heads: int,
    bias: Tensor | None = None,  # [(H + 2K) * D] of a raw product, which cannot have it yet
) -> Tensor:  # [N, H, D]
    """The turned queries. LLaDA turns in float32, Dream in the model's dtype, rounding at every step."""
    raw, row_scale, column_scale = parts(qkv)
    if not compiles(raw) or not compiles(keys):
        return rotate_and_store_plain(qkv, cos, sin, slots, keys, values, heads, bias)
    kv_heads, width = keys.shape[1:]
    query = keys.new_empty(len(raw), heads, width)
    together = min(MOST_HEADS, heads & -heads, kv_heads & -kv_heads)
    grid, half = (len(raw), (heads + 2 * kv_heads) // together), power_of_two(width // 2)
    compiled(_rotate_and_store)[grid](
        raw, row_scale, column_scale, bias, cos, sin, slots, query, keys, values,
        heads, kv_heads, width // 2,
        HEADS=together, HALF=half, num_warps=max(1, together * half // 256),
    )  # fmt: skip
    return query


def rotate_and_store_plain(
    qkv: Tensor | Raw,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    bias: Tensor | None = None,
) -> Tensor:
    """The same in torch."""
    together = scaled(qkv, keys.dtype)
    together = together if bias is None else together + bias
    kv_heads, width = keys.shape[1:]
    apart = together.view(-1, heads + 2 * kv_heads, width)
    query, key, value = torch.split(apart, [heads, kv_heads, kv_heads], 1)
    keys[slots], values[slots] = _turned(key, cos, sin), value
    return _turned(query, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [N, H, D]
    left, right = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    return turned.to(x.dtype)


def _rotate_and_store(
    qkv: tl.tensor,
    row_scale: tl.tensor,
    column_scale: tl.tensor,
    bias: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    half: tl.tensor,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Some heads of a column a program: all of them queries, or keys, or values."""
    column = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    head = first + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    inside = (head >= 0)[:, None] & (pair < half)[None, :]
    place = head[:, None] * 2 * half + pair[None, :]
    at = qkv + column * (heads + 2 * kv_heads) * 2 * half + place
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if row_scale is not None:
        by_row = tl.load(row_scale + column)
        left *= by_row * tl.load(column_scale + place, mask=inside, other=0.0)
        right *= by_row * tl.load(column_scale + half + place, mask=inside, other=0.0)
        left = left.to(query.dtype.element_ty).to(tl.float32)
        right = right.to(query.dtype.element_ty).to(tl.float32)
    if bias is not None:
        left += tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
        right += tl.load(bias + half + place, mask=inside, other=0.0).to(tl.float32)
        left = left.to(query.dtype.element_ty).to(tl.float32)
        right = right.to(query.dtype.element_ty).to(tl.float32)
    slot = tl.load(slots + column).to(tl.int64)
    if first >= heads + kv_heads:
        to = values + (slot * kv_heads - heads - kv_heads) * 2 * half + place
        tl.store(to, left.to(query.dtype.element_ty), mask=inside)
        tl.store(to + half, right.to(query.dtype.element_ty), mask=inside)
    else:
        # Every product is rounded to the dtype of the rotation, as torch rounds it.
        c = tl.load(cos + column * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + column * half + pair, mask=pair < half, other=0.0).to(tl.float32)[None, :]
        left_cos = (left * c).to(cos.dtype.element_ty).to(tl.float32)
        right_sin = (right * s).to(cos.dtype.element_ty).to(tl.float32)
        right_cos = (right * c).to(cos.dtype.element_ty).to(tl.float32)
        left_sin = (left * s).to(cos.dtype.element_ty).to(tl.float32)
        turned_left = (left_cos - right_sin).to(query.dtype.element_ty)
        turned_right = (right_cos + left_sin).to(query.dtype.element_ty)
        if first >= heads:
            to_key = keys + (slot * kv_heads - heads) * 2 * half + place
            tl.store(to_key, turned_left, mask=inside)
            tl.store(to_key + half, turned_right, mask=inside)
        else:
            to_query = query + column * heads * 2 * half + place
            tl.store(to_query, turned_left, mask=inside)
            tl.store(to_query + half, turned_right, mask=inside)
