"""attend: packed columns look at the keys of their own rows, wherever in a store those lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.kernels.compiled import compiled, compiles, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

HALVES = (torch.bfloat16, torch.float16)
FEW_QUERIES = 64  # columns a row, up to which keys are split over the GPU: see _attend
KEYS_AT_ONCE = 64
PROGRAMS = 256  # enough to keep a GPU of some hundred processors busy


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


def attend(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """What every packed column [N, H, D] gathers from the store [C, K, D]; groups of heads share keys."""
    halves = compiles(query) and (query.dtype in HALVES or not query.is_cuda)
    if halves and rows.most_queries <= FEW_QUERIES:
        return _split(query, keys, values, rows)
    if halves and query.is_cuda and query.shape[-1] % 8 == 0:
        # Flash reads key_starts as offsets only, since it is told how many keys are used.
        return torch.ops.aten._flash_attention_forward(
            query, keys, values, rows.query_starts, rows.key_starts,
            rows.most_queries, rows.most_keys, 0.0, False, False, seqused_k=rows.key_counts,
        )[0]  # fmt: skip
    return attend_plain(query, keys, values, rows)


def attend_plain(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """The same in torch, row by row."""
    mixed, starts = torch.zeros_like(query), rows.query_starts.tolist()
    ranges = zip(starts, starts[1:], rows.key_starts.tolist(), rows.key_counts.tolist())
    for first, end, start, count in ranges:
        if end > first and count:
            asked, own = query[first:end].transpose(0, 1), slice(start, start + count)
            said = F.scaled_dot_product_attention(
                asked[None],
                keys[own].transpose(0, 1)[None],
                values[own].transpose(0, 1)[None],
                enable_gqa=query.shape[1] != keys.shape[1],
            )
            mixed[first:end] = said[0].transpose(0, 1)
    return mixed


def _split(query: Tensor, keys: Tensor, values: Tensor, rows: PackedRows) -> Tensor:
    """Few queries over many keys: parts of a row's keys at the same time, then their mean by weight."""
    count, heads, width = query.shape
    parts = max(1, PROGRAMS // (len(rows.key_counts) * heads))
    split = max(KEYS_AT_ONCE, -(-rows.most_keys // (parts * KEYS_AT_ONCE)) * KEYS_AT_ONCE)
    parts = -(-rows.most_keys // split)
    mixed = torch.empty_like(query)
    partial = (
        query.new_empty(count, heads, parts, width, dtype=torch.float32) if parts > 1 else mixed
    )
    weight = query.new_empty(count, heads, parts, dtype=torch.float32)
    starts = (rows.query_starts, rows.key_starts, rows.key_counts)
    at_once = power_of_two(max(16, rows.most_queries))
    across, block = len(rows.key_counts), power_of_two(max(16, width))
    compiled(_attend)[(across, heads, parts)](
        query, keys, values, *starts, partial, weight,
        heads, keys.shape[1], width, split, parts, width**-0.5,
        QUERIES=at_once, KEYS=KEYS_AT_ONCE, WIDTH=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        compiled(_join)[(across, heads, rows.most_queries)](
            partial, weight, rows.query_starts, rows.key_counts, mixed, heads, width, split, parts,
            PARTS=power_of_two(parts), WIDTH=block, num_warps=1,
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
    heads: tl.tensor,
    kv_heads: tl.tensor,
    width: tl.tensor,
    split: tl.tensor,
    parts: tl.tensor,
    scale: tl.tensor,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """All queries of a row in one head over one part of its keys a program."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(query_starts + row)
    asking = tl.load(query_starts + row + 1) - first
    start = tl.load(key_starts + row).to(tl.int64)
    end = tl.minimum(tl.load(key_counts + row), (part + 1) * split)
    if (part * split < end) | (part == 0):
        ask = tl.arange(0, QUERIES)
        place = tl.arange(0, WIDTH)
        asks = (ask < asking)[:, None] & (place < width)[None, :]
        lane = (first + ask).to(tl.int64) * heads + head
        q = tl.load(query + lane[:, None] * width + place[None, :], mask=asks, other=0.0)
        own = keys + (head // (heads // kv_heads)) * width
        own_values = values + (head // (heads // kv_heads)) * width
        best = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
        for at in range(part * split, end, KEYS):
            key = at + tl.arange(0, KEYS)
            there = (key < end)[:, None] & (place < width)[None, :]
            where = (start + key)[:, None] * kv_heads * width + place[None, :]
            k = tl.load(own + where, mask=there, other=0.0)
            v = tl.load(own_values + where, mask=there, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            scores = tl.where((key < end)[None, :], scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            chance = tl.exp(scores - higher[:, None])
            fade = tl.exp(best - higher)
            total = total * fade + tl.sum(chance, axis=1)
            mixed = mixed * fade[:, None] + tl.dot(chance.to(v.dtype), v)
            best = higher
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        slot = lane * parts + part
        tl.store(weight + slot, best + tl.log(total), mask=ask < asking)
        to = partial + slot[:, None] * width + place[None, :]
        tl.store(to, mixed.to(partial.dtype.element_ty), mask=asks)


def _join(
    partial: tl.tensor,
    weight: tl.tensor,
    query_starts: tl.tensor,
    key_counts: tl.tensor,
    mixed: tl.tensor,
    heads: tl.tensor,
    width: tl.tensor,
    split: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One query in one head a program."""
    row, head, ask = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(query_starts + row)
    if first + ask < tl.load(query_starts + row + 1):
        lane = (first + ask).to(tl.int64) * heads + head
        part, place = tl.arange(0, PARTS), tl.arange(0, WIDTH)
        there = (part == 0) | (part * split < tl.load(key_counts + row))
        weights = tl.load(weight + lane * parts + part, mask=there, other=float("-inf"))
        best = tl.max(weights, axis=0)
        share = tl.exp(weights - tl.where(best > float("-inf"), best, 0.0))
        total = tl.sum(share, axis=0)
        share = share / tl.where(total > 0, total, 1.0)
        inside = there[:, None] & (place < width)[None, :]
        where = (lane * parts + part)[:, None] * width + place[None, :]
        said = tl.load(partial + where, mask=inside, other=0.0)
        joined = tl.sum(said * share[:, None], axis=0)
        to = mixed + lane * width + place
        tl.store(to, joined.to(mixed.dtype.element_ty), mask=place < width)
