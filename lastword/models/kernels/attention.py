"""attend: packed columns look at the keys of their own rows, wherever in a store those lie."""

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

from lastword.models.kernels.compiled import compiled, compiles, power_of_two

if TYPE_CHECKING:
    import triton.language as tl


HALVES = (torch.bfloat16, torch.float16)
FEW_QUERIES = 64  # columns a row, up to which keys are split over the GPU: see _attend
FOR_ONE_SHAPE = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Tiling:
    """How `_attend` cuts its work into programs."""

    queries: int  # at most, of all heads that share keys
    keys: int  # at a time
    programs: int  # up to which a row's keys are split: enough to keep a GPU busy
    warps: int
    stages: int


FEW = Tiling(queries=64, keys=64, programs=264, warps=4, stages=3)
MANY = Tiling(queries=128, keys=64, programs=1, warps=8, stages=3)
FLOAT32 = Tiling(queries=32, keys=32, programs=264, warps=4, stages=2)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Which of N packed columns are a row's, and where in a store its keys and values lie.

    A row's packed columns stand side by side, and so do its keys.
    """

    query_starts: Tensor  # [B + 1] int32, the first packed column of every row, and N
    key_starts: Tensor  # [B + 1] int32, where in the store a row's keys begin; the last is unread
    key_counts: Tensor  # [B] int32
    most_queries: int  # of any row
    most_keys: int
    slots: Tensor  # [N] long, where in the store each packed column's own keys and values go
    own: slice | None = None  # of the store: the keys of the only row, where the host knows them


def attend(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """What every packed column [N, H, D] gathers from the store [C, K, D]; groups of heads share keys."""
    if not compiles(query):
        return attend_plain(query, keys, values, rows)
    if query.dtype not in HALVES:
        return attend_tiled(query, keys, values, rows, FLOAT32)
    if rows.most_queries <= FEW_QUERIES:
        return attend_tiled(query, keys, values, rows, FEW)
    if not query.is_cuda or query.shape[-1] % 8:
        return attend_tiled(query, keys, values, rows, MANY)
    if rows.own is not None and _PLANS.get():
        return attend_alone(query, keys[rows.own], values[rows.own])
    # Flash reads key_starts as offsets only, since it is told how many keys are used.
    return torch.ops.aten._flash_attention_forward(
        query, keys, values, rows.query_starts, rows.key_starts,
        rows.most_queries, rows.most_keys, 0.0, False, False, seqused_k=rows.key_counts,
    )[0]  # fmt: skip


def attend_plain(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """The same in torch, row by row."""
    mixed, starts = torch.zeros_like(query), rows.query_starts.tolist()
    ranges = zip(starts, starts[1:], rows.key_starts.tolist(), rows.key_counts.tolist())
    for first, end, start, count in ranges:
        if end > first and count:
            own = slice(start, start + count)
            mixed[first:end] = _one_row(query[first:end], keys[own], values[own])
    return mixed


def attend_alone(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same for one row [N, H, D] and its own keys [L, K, D], by cuDNN where torch has it."""
    with sdpa_kernel(FOR_ONE_SHAPE, set_priority=True):
        return _one_row(query, keys, values)


def _one_row(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    query, keys, values = (x.transpose(0, 1)[None] for x in (query, keys, values))
    grouped = query.shape[1] != keys.shape[1]
    mixed = F.scaled_dot_product_attention(query, keys, values, enable_gqa=grouped)
    return mixed[0].transpose(0, 1)


_PLANS: ContextVar[bool] = ContextVar("plans", default=False)


@contextmanager
def planning() -> Iterator[None]:
    """What is computed meanwhile will be repeated: it pays to plan for its shape.

    cuDNN is the fastest for one row, and plans for a shape longer than a pass takes.
    """
    before = _PLANS.set(True)
    try:
        yield
    finally:
        _PLANS.reset(before)


def attend_tiled(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows, tiling: Tiling) -> Tensor:
    """The same by `_attend`: queries of a group together, parts of a row's keys at the same time."""
    (count, heads, width), kv_heads = query.shape, keys.shape[1]
    across, asking = len(rows.key_counts), rows.most_queries * (heads // kv_heads)
    at_once = min(tiling.queries, power_of_two(max(16, asking)))
    tiles, block = -(-asking // at_once), power_of_two(max(16, width))
    parts = max(1, tiling.programs // (across * kv_heads * tiles))
    parts = min(parts, -(-rows.most_keys // tiling.keys))
    mixed, weight = torch.empty_like(query), None
    partial = mixed
    if parts > 1:
        partial = query.new_empty(count, heads, parts, width, dtype=torch.float32)
        weight = query.new_empty(count, heads, parts, dtype=torch.float32)
    starts = (rows.query_starts, rows.key_starts, rows.key_counts)
    compiled(_attend)[(parts * tiles, kv_heads, across)](
        query, keys, values, *starts, partial, weight, parts, tiles, width**-0.5 / math.log(2),
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, BLOCK=block, QUERIES=at_once, KEYS=tiling.keys,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    if weight is not None:
        compiled(_join)[(count, heads)](
            partial, weight, mixed, parts,
            HEADS=heads, WIDTH=width, BLOCK=block, PARTS=power_of_two(parts), num_warps=1,
        )  # fmt: skip
    return mixed


def _attend(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    query_starts: tl.tensor,
    key_starts: tl.tensor,
    key_counts: tl.tensor,
    partial: tl.tensor,
    weight: tl.tensor,
    parts: tl.tensor,
    tiles: tl.tensor,
    scale: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """Some queries of a row, in all heads that share keys, over one part of the row's keys a program.

    A query's heads stand side by side in a tile. Weights are logarithms to the base 2.
    """
    tile, part = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    kv_head, row = tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    first = tl.load(query_starts + row)
    asking = (tl.load(query_starts + row + 1) - first) * GROUP
    start = tl.load(key_starts + row).to(tl.int64)
    count = tl.load(key_counts + row)
    split = tl.cdiv(tl.cdiv(count, KEYS), parts) * KEYS
    begin, end = part * split, tl.minimum(count, (part + 1) * split)
    if tile * QUERIES < asking:
        ask = tile * QUERIES + tl.arange(0, QUERIES)
        place = tl.arange(0, BLOCK)
        inside = (place < WIDTH)[None, :]
        lane = (first + ask // GROUP).to(tl.int64) * HEADS + kv_head * GROUP + ask % GROUP
        asks = (ask < asking)[:, None] & inside
        q = tl.load(query + lane[:, None] * WIDTH + place[None, :], mask=asks, other=0.0)
        key = tl.arange(0, KEYS)
        offsets = key[:, None] * (KV_HEADS * WIDTH) + place[None, :]
        best = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, BLOCK], tl.float32)
        for at in range(begin, end, KEYS):
            there = (key < end - at)[:, None] & inside
            base = ((start + at) * KV_HEADS + kv_head) * WIDTH
            k = tl.load(keys + base + offsets, mask=there, other=0.0)
            v = tl.load(values + base + offsets, mask=there, other=0.0)
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
        says = (ask < tl.where((begin < end) | (part == 0), asking, 0))[:, None] & inside
        tl.store(to, mixed.to(partial.dtype.element_ty), mask=says)
        if weight is not None:
            tl.store(weight + slot, best + tl.log2(total), mask=ask < asking)


def _join(
    partial: tl.tensor,
    weight: tl.tensor,
    mixed: tl.tensor,
    parts: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """The parts of one query in one head, a program; one without keys was not written and weighs nothing."""
    lane = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    part, place = tl.arange(0, PARTS), tl.arange(0, BLOCK)
    slot = lane * parts + part
    weights = tl.load(weight + slot, mask=part < parts, other=float("-inf"))
    inside = (part < parts)[:, None] & (place < WIDTH)[None, :]
    said = tl.load(partial + slot[:, None] * WIDTH + place[None, :], mask=inside, other=0.0)
    best = tl.max(weights, axis=0)
    share = tl.exp2(weights - tl.where(best > float("-inf"), best, 0.0))
    total = tl.sum(share, axis=0)
    share = share / tl.where(total > 0, total, 1.0)
    joined = tl.sum(tl.where((share > 0)[:, None], said, 0.0) * share[:, None], axis=0)
    to = mixed + lane * WIDTH + place
    tl.store(to, joined.to(mixed.dtype.element_ty), mask=place < WIDTH)
