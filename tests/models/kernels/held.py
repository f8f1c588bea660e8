"""Kernels held to their plain twins: in Triton's interpreter, or on a GPU.

A program, since TRITON_INTERPRET=1 must stand before Triton is imported; KERNELS_ON=cuda for a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import lastword
from lastword.models.kernels.attention import MANY, MAX_FEW_QUERIES, PackedRows, attend, attend_one_row, attend_tiled
from lastword.models.kernels.float8 import FLOAT8, Float8Rows, UnscaledProduct, quantize_rows, quantize_rows_plain
from lastword.models.kernels.fused import add_rms_norm, rotate_and_store, silu_mul
from lastword.models.kernels.vocabulary import score_columns
from lastword.models.storage import KVStorage, RowKVStorage

DEVICE = torch.device(os.environ.get("KERNELS_ON", "cpu"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
made = torch.Generator(DEVICE).manual_seed(0)


def plain(function, *arguments, **keywords):
    """Compute a function with PyTorch instead of its kernel."""
    module = sys.modules[function.__module__]
    module.uses_triton, uses_triton = lambda x: False, module.uses_triton
    try:
        return function(*arguments, **keywords)
    finally:
        module.uses_triton = uses_triton


def numbers(*shape, dtype=torch.float32, scale=1.0):
    return (scale * torch.randn(*shape, generator=made, device=DEVICE)).to(dtype)


def raw(rows, columns, dtype):
    """A product as fp8 leaves it."""
    return UnscaledProduct(
        numbers(rows, columns, dtype=torch.bfloat16, scale=3e4),
        numbers(rows).abs() * 1e-3,
        numbers(columns).abs() * 1e-1,
    )


def whole(x):
    if isinstance(x, Float8Rows):
        assert x.values.dtype == FLOAT8
        return x.values.float() * x.scale[:, None]
    return x.float()


def close(given, expected, dtype, what, *, float8=False):
    if float8 and DEVICE.type == "cpu":
        # Triton's interpreter loses the carry where a number is rounded up to a power of two in fp8.
        lost = expected.values.float().frexp().mantissa.abs() == 0.5
        given.values[lost] = expected.values[lost]
    given, expected = whole(given), whole(expected)
    size = expected.abs().max().clamp(min=1e-6)
    bound = 0.08 if float8 else {torch.float32: 2e-5}.get(dtype, 0.02)
    worst = float((given - expected).abs().max() / size)
    assert worst <= bound, f"{what} in {dtype}: off by {worst:.5f} of the largest"
    mean = float((given - expected).abs().mean() / size)
    assert mean <= bound / 10, f"{what} in {dtype}: off by {mean:.6f} in the mean"


def hold_norm(dtype, rows, width):
    x, weight = numbers(rows, width, dtype=dtype), numbers(width, dtype=dtype)
    for delta in (None, numbers(rows, width, dtype=dtype), raw(rows, width, dtype)):
        for float8 in (False, True):
            given = add_rms_norm(x, delta, weight, 1e-5, quantize=float8)
            expected = plain(add_rms_norm, x, delta, weight, 1e-5, quantize=float8)
            close(given[0], expected[0], dtype, "sum")
            close(given[1], expected[1], dtype, "norm", float8=float8)
    close(quantize_rows(x), quantize_rows_plain(x), dtype, "quantize_rows", float8=True)
    x[0] = 0
    assert not whole(quantize_rows(x))[0].any()


def hold_gate(dtype, rows, width):
    close(
        silu_mul((both := numbers(rows, 2 * width, dtype=dtype)).clone(), dtype),
        plain(silu_mul, both, dtype), dtype, "gate",
    )  # fmt: skip
    product = raw(rows, 2 * width, dtype)
    close(silu_mul(product, dtype), plain(silu_mul, product, dtype), dtype, "fp8 gate", float8=True)


def hold_rotary(dtype, rows, heads, kv_heads, width):
    angles = numbers(rows, width // 2, scale=3.0)
    slots = torch.randperm(rows + 7, device=DEVICE)[:rows]
    columns = (heads + 2 * kv_heads) * width
    bias = numbers(columns, dtype=dtype)
    for work in {torch.float32, dtype}:
        cos, sin = angles.cos().to(work), angles.sin().to(work)
        for product, added in (
            (numbers(rows, columns, dtype=dtype), None),
            (raw(rows, columns, dtype), None),
            (raw(rows, columns, dtype), bias),
        ):
            stores = [
                [torch.zeros(rows + 7, kv_heads, width, device=DEVICE, dtype=dtype) for _ in "kv"] for _ in range(2)
            ]
            given = rotate_and_store(product, cos, sin, slots, *stores[0], heads, added)
            expected = plain(rotate_and_store, product, cos, sin, slots, *stores[1], heads, added)
            for name, one, other in zip(("query", "keys", "values"), (given, *stores[0]), (expected, *stores[1])):
                close(one, other, dtype, name)
            if isinstance(product, torch.Tensor) and dtype != torch.float32:
                assert torch.equal(stores[0][1], stores[1][1])


def hold_attention(dtype, queries, keys, heads, kv_heads, width, max_keys=None):
    starts = torch.tensor([0, *queries]).cumsum(0).to(DEVICE, torch.int32)
    counts = torch.tensor(keys, device=DEVICE, dtype=torch.int32)
    # Regions apart and not in order, as in a memory whose rows have room of their own.
    room = max(keys) + 5
    key_starts = torch.tensor([room * (len(keys) - 1 - i) + 2 for i in range(len(keys))] + [0], device=DEVICE).int()
    store = [numbers(room * len(keys) + 2, kv_heads, width, dtype=dtype) for _ in "kv"]
    query = numbers(sum(queries), heads, width, dtype=dtype)
    rows = PackedRows(starts, key_starts, counts, max(queries), max_keys or max(keys), torch.arange(sum(queries)))
    given, expected = attend(query, *store, rows), plain(attend, query, *store, rows)
    close(given, expected, dtype, f"attention of {queries} over {keys}")
    if max(queries) > MAX_FEW_QUERIES and dtype != torch.float32:
        given = attend_tiled(query, *store, rows, MANY)
        close(given, expected, dtype, f"attention in tiles of {queries} over {keys}")
    if len(queries) == 1:
        given = attend_one_row(query, *(kept[2 : 2 + keys[0]] for kept in store))
        close(given, expected, dtype, f"attention of {queries} alone")


def hold_summary(dtype, rows, width):
    logits = numbers(rows, width, dtype=dtype, scale=4.0)
    logits[0, :] = 1.0  # all equal: the leftmost
    logits[1, [3, width - 2]] = 30.0  # two equals, far apart
    logits[2, 5] = torch.inf
    logits[3, width - 1] = torch.nan
    logits[4] = -torch.inf
    logits[5, 2:] = -torch.inf
    logits[6, 1] = 60.0
    for banned, unscored in (((), ()), ((0, 3), ()), ((1,), (1,)), ((), (1, 3)), ((7,), (7, 9))):
        given = score_columns(logits, banned=banned, unscored=unscored)
        expected = plain(score_columns, logits, banned=banned, unscored=unscored)
        for lost in (2, 3, 4):
            assert not (given.candidate_logit[lost].isfinite() & given.logsumexp[lost].isfinite()), lost
        fine = [row for row in range(rows) if row not in (2, 3, 4)]
        if {*banned} >= {0, 1}:
            fine.remove(5)
        for name in ("candidate", "argmax"):
            assert torch.equal(getattr(given, name)[fine], getattr(expected, name)[fine]), name
        for name in ("candidate_logit", "gap", "logsumexp", "confidence", "margin", "entropy"):
            torch.testing.assert_close(
                getattr(given, name)[fine], getattr(expected, name)[fine], atol=2e-4, rtol=2e-4,
            )  # fmt: skip
        assert all(0 <= int(token) < width for token in given.candidate)
    first = 0 if 0 not in banned else 1
    assert int(given.argmax[0]) == 0
    assert int(given.candidate[0]) == first


def hold_model(name, dtype, quantization):
    """A tiny checkpoint, packed against plain: all columns of unequal rows, then a block over a memory."""
    folder = Path(__file__).parents[2] / "golden" / name
    model = lastword.load(folder, device=DEVICE, dtype=dtype, quantization=quantization)
    tokens = torch.arange(24, device=DEVICE).view(2, 12) + 40
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[1, :3] = valid[1, 10:] = False
    block, rows = (torch.tensor([[5, 6, 7], [6, 7, 8]], device=DEVICE), torch.arange(2, device=DEVICE))
    said = []
    for model.packs in (False, True):
        memory = KVStorage(2, 12)
        whole = model(tokens, block, valid=valid, storage=RowKVStorage(memory, rows, None, torch.zeros_like(rows)))
        part = RowKVStorage(memory, rows, block, torch.full_like(rows, 3), uniform=model.packs)
        again = model(tokens + 1, block, valid=valid, stale=block, storage=part)
        said.append(torch.stack((whole, again, model(tokens, block, valid=valid))))
    plain, packed = (x.float() for x in said)
    off = float((packed - plain).norm() / plain.norm())
    bound = 0.1 if quantization else {torch.float32: 1e-5}.get(dtype, 0.05)
    assert off < bound, f"{name} in {dtype}, {quantization}: off by {off}"


def main():
    on_gpu = DEVICE.type == "cuda"
    # Triton's interpreter cuts bf16 off where a GPU rounds, and numpy cannot float8_matmul it.
    for dtype in DTYPES if on_gpu else (torch.float32, torch.float16):
        hold_norm(dtype, 3, 64)
        hold_norm(dtype, 5, 200)
        hold_gate(dtype, 3, 48)
        hold_gate(dtype, 2, 2500)
        hold_rotary(dtype, 3, 4, 2, 16)
        hold_rotary(dtype, 5, 7, 1, 24)
        hold_summary(dtype, 8, 300)
        hold_summary(dtype, 7, 9001)
        hold_attention(dtype, [5], [70], 2, 2, 16)
        hold_attention(dtype, [3, 17, 1], [130, 40, 201], 4, 2, 16)
        hold_attention(dtype, [2, 0, 3], [66, 0, 500], 6, 2, 24, max_keys=900)
        hold_attention(dtype, [2] * 70, [66] * 70, 4, 4, 16)
        hold_attention(dtype, [70, 3], [100, 230], 6, 2, 16)
        for name in ("llada-tiny", "dream-tiny"):
            for quantization in (None, "fp8") if on_gpu else (None,):
                hold_model(name, dtype, quantization)
    if on_gpu:
        for dtype in (torch.bfloat16, torch.float16):
            hold_norm(dtype, 33, 4096)
            hold_norm(dtype, 1924, 3584)
            hold_gate(dtype, 33, 12288)
            hold_gate(dtype, 500, 18944)
            hold_rotary(dtype, 33, 32, 32, 128)
            hold_rotary(dtype, 500, 28, 4, 128)
            hold_summary(dtype, 33, 126464)
            hold_summary(dtype, 300, 152064)
            for heads, kv_heads in ((32, 32), (28, 4)):
                hold_attention(dtype, [32], [1200], heads, kv_heads, 128, max_keys=2048)
                hold_attention(dtype, [1924], [1924], heads, kv_heads, 128)
                hold_attention(dtype, [33] * 16, [1200, 300] * 8, heads, kv_heads, 128)
                hold_attention(dtype, [300, 1924, 70], [300, 1924, 1000], heads, kv_heads, 128)
    print("held")


if __name__ == "__main__":
    main()
