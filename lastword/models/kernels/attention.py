"""Attention of packed columns to the keys and values of their rows, which are read from the storage in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lastword.models.kernels import compile_kernel, power_of_two, uses_triton

if TYPE_CHECKING:
    import triton.language as tl


HALVES = (torch.bfloat16, torch.float16)
MAX_FEW_QUERIES = 64  # per row; up to this many, the keys of a row are split over programs
FOR_ONE_SHAPE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Tiling:
    """The tile sizes and launch options of the kernel `_attend`."""

    queries: int  # per tile, at most; every head that shares the keys counts as a query
    keys: int  # per iteration
    programs: int  # the keys of a row are split until about this many programs run, enough to fill a GPU
    warps: int
    stages: int


FEW = Tiling(queries=64, keys=64, programs=264, warps=4, stages=3)
MANY = Tiling(queries=128, keys=64, programs=1, warps=8, stages=3)
FLOAT32 = Tiling(queries=32, keys=32, programs=264, warps=4, stages=2)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The ranges of the packed columns of each row, and of the row's keys and values in the storage.

    The packed columns of a row are adjacent, and so are its keys and values.
    """

    query_starts: Tensor  # [B + 1] int32, the first packed column of every row, and the end of the last row
    key_starts: Tensor  # [B + 1] int32, the index of each row's first key in the storage; the last entry is unused
    key_counts: Tensor  # [B] int32
    max_queries: int  # the maximum over rows
    max_keys: int
    slots: Tensor  # [N] long, the storage index of the keys and values of each packed column
    span: slice | None = None  # the indices of the keys of a single row, if known without a host sync


def attend(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """Return the attention output [N, H, D] of packed columns over keys and values [C, K, D].

    H is a multiple of K: the heads of a group share keys and values.
    """
    if not uses_triton(query):
        starts = rows.query_starts.tolist()
        outputs = []
        for first, end, start, count in zip(starts, starts[1:], rows.key_starts.tolist(), rows.key_counts.tolist()):
            part, span = query[first:end], slice(start, start + count)
            outputs.append(_attend_one_row(part, keys[span], values[span]) if count else torch.zeros_like(part))
        outputs.append(torch.zeros_like(query[starts[-1] :]))  # unused capacity
        return torch.cat([output for output in outputs if len(output)] or outputs[:1])
    if query.dtype not in HALVES:
        return attend_tiled(query, keys, values, rows, FLOAT32)
    if rows.max_queries <= MAX_FEW_QUERIES:
        return attend_tiled(query, keys, values, rows, FEW)
    if not query.is_cuda or query.shape[-1] % 8:
        return attend_tiled(query, keys, values, rows, MANY)
    if rows.span is not None and _PLANS_FOR_SHAPE.get():
        return attend_one_row(query, keys[rows.span], values[rows.span])
    # With `seqused_k`, flash attention uses key_starts as offsets only.
    return torch.ops.aten._flash_attention_forward(
        query, keys, values, rows.query_starts, rows.key_starts,
        rows.max_queries, rows.max_keys, 0.0, False, False, seqused_k=rows.key_counts,
    )[0]  # fmt: skip


def attend_one_row(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of `attend` for one row [N, H, D] and its keys [L, K, D], with cuDNN if torch has it."""
    with sdpa_kernel(FOR_ONE_SHAPE, set_priority=True):
        return _attend_one_row(query, keys, values)


def _attend_one_row(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    query, keys, values = (x.transpose(0, 1)[None] for x in (query, keys, values))
    grouped = query.shape[1] != keys.shape[1]
    mixed = F.scaled_dot_product_attention(query, keys, values, enable_gqa=grouped)
    return mixed[0].transpose(0, 1)


_PLANS_FOR_SHAPE: ContextVar[bool] = ContextVar("plans_for_shape", default=False)


@contextmanager
def plan_for_shape() -> Iterator[None]:
    """Allow cuDNN in the `with` body, for passes that are captured and then replayed with the same shape.

    cuDNN is the fastest backend for a single row, but its planning for a new shape takes longer than a pass.
    """
    token = _PLANS_FOR_SHAPE.set(True)
    try:
        yield
    finally:
        _PLANS_FOR_SHAPE.reset(token)


def attend_tiled(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows, tiling: Tiling) -> Tensor:
    """Return the output of `attend`, computed by the kernel `_attend` in parallel over parts of a row's keys."""
    (count, heads, width), kv_heads = query.shape, keys.shape[1]
    num_rows, queries = len(rows.key_counts), rows.max_queries * (heads // kv_heads)
    tile_size = min(tiling.queries, power_of_two(max(16, queries)))
    tiles, block = -(-queries // tile_size), power_of_two(max(16, width))
    parts = max(1, tiling.programs // (num_rows * kv_heads * tiles))
    parts = min(parts, -(-rows.max_keys // tiling.keys))
    output, weight = torch.empty_like(query), None
    partial = output
    if parts > 1:
        partial = query.new_empty(count, heads, parts, width, dtype=torch.float32)
        weight = query.new_empty(count, heads, parts, dtype=torch.float32)
    starts = (rows.query_starts, rows.key_starts, rows.key_counts)
    compile_kernel(_attend)[(parts * tiles, kv_heads, num_rows)](
        query, keys, values, *starts, partial, weight, parts, tiles, width**-0.5 / math.log(2),
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, BLOCK=block, QUERIES=tile_size, KEYS=tiling.keys,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    if weight is not None:
        compile_kernel(_join_parts)[(count, heads)](
            partial, weight, output, parts,
            HEADS=heads, WIDTH=width, BLOCK=block, PARTS=power_of_two(parts), num_warps=1,
        )  # fmt: skip
    return output


def _attend(
    query,
    keys,
    values,
    query_starts,
    key_starts,
    key_counts,
    partial,
    weight,
    parts,
    tiles,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """Compute one tile of a row's queries over one part of the row's keys per program.

    A tile has all heads that share the keys, adjacent for each query. `weight` is the base-2 log-sum-exp of a part.
    """
    tile, part = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    kv_head, row = tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    first = tl.load(query_starts + row)
    num_queries = (tl.load(query_starts + row + 1) - first) * GROUP
    start = tl.load(key_starts + row).to(tl.int64)
    count = tl.load(key_counts + row)
    split = tl.cdiv(tl.cdiv(count, KEYS), parts) * KEYS
    begin, end = part * split, tl.minimum(count, (part + 1) * split)
    if tile * QUERIES < num_queries:
        query_id = tile * QUERIES + tl.arange(0, QUERIES)
        place = tl.arange(0, BLOCK)
        inside = (place < WIDTH)[None, :]
        lane = (first + query_id // GROUP).to(tl.int64) * HEADS + kv_head * GROUP + query_id % GROUP
        query_mask = (query_id < num_queries)[:, None] & inside
        q = tl.load(query + lane[:, None] * WIDTH + place[None, :], mask=query_mask, other=0.0)
        key = tl.arange(0, KEYS)
        offsets = key[:, None] * (KV_HEADS * WIDTH) + place[None, :]
        best = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, BLOCK], tl.float32)
        for at in range(begin, end, KEYS):
            key_mask = (key < end - at)[:, None] & inside
            base = ((start + at) * KV_HEADS + kv_head) * WIDTH
            k = tl.load(keys + base + offsets, mask=key_mask, other=0.0)
            v = tl.load(values + base + offsets, mask=key_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where((key < end - at)[None, :], scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            chance = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(best - higher)
            total = total * fade + tl.sum(chance, axis=1)
            mixed = mixed * fade[:, None]
            mixed += tl.dot(chance.to(v.dtype), v, input_precision="ieee")
            best = higher
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        slot = lane * parts + part
        to = partial + slot[:, None] * WIDTH + place[None, :]
        written = (query_id < tl.where((begin < end) | (part == 0), num_queries, 0))[:, None] & inside
        tl.store(to, mixed.to(partial.dtype.element_ty), mask=written)
        if weight is not None:
            tl.store(weight + slot, best + tl.log2(total), mask=query_id < num_queries)


def _join_parts(
    partial, weight, mixed, parts, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr
) -> None:
    """Combine the parts of one query in one head per program; outputs of parts without keys were not written."""
    lane = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    part, place = tl.arange(0, PARTS), tl.arange(0, BLOCK)
    slot = lane * parts + part
    weights = tl.load(weight + slot, mask=part < parts, other=float("-inf"))
    inside = (part < parts)[:, None] & (place < WIDTH)[None, :]
    outputs = tl.load(partial + slot[:, None] * WIDTH + place[None, :], mask=inside, other=0.0)
    best = tl.max(weights, axis=0)
    share = tl.exp2(weights - tl.where(best > float("-inf"), best, 0.0))
    total = tl.sum(share, axis=0)
    share = share / tl.where(total > 0, total, 1.0)
    joined = tl.sum(tl.where((share > 0)[:, None], outputs, 0.0) * share[:, None], axis=0)
    to = mixed + lane * WIDTH + place
    tl.store(to, joined.to(mixed.dtype.element_ty), mask=place < WIDTH)
