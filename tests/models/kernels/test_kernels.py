"""Plain twins held to what the model computes, and kernels to their twins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lastword.decoding.sampling import Sampling
from lastword.models.kernels import attention
from lastword.models.kernels.attention import PackedRows, attend
from lastword.models.kernels.float8 import apply_scales, float8_matmul, quantize_rows
from lastword.models.kernels.fused import add_rms_norm, rotate, rotate_and_store, silu_mul
from lastword.models.kernels.vocabulary import score_columns
from lastword.models.layers import RMSNorm

ROOT = Path(__file__).parents[3]
HALVES = (torch.float32, torch.bfloat16, torch.float16)


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", f"tests/models/kernels/{program}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


@pytest.mark.full
def test_kernels_agree_with_their_twins_in_tritons_interpreter():
    pytest.importorskip("triton", reason="needs the package triton")
    ended = run("held.py", TRITON_INTERPRET="1")
    assert ended.stdout == "held\n", ended.stderr[-2000:]


@pytest.mark.full
def test_kernels_compile_for_a_gpu():
    pytest.importorskip("triton", reason="needs the package triton")
    ended = run("built.py")
    names = "_add_rms_norm _attend _combine_blocks _join_parts _quantize_rows _rotate_and_store"
    assert ended.stdout == f"{names} _score_block _silu_mul\n", ended.stderr[-2000:]


@pytest.mark.gpu
def test_kernels_agree_with_their_twins_on_a_gpu():
    ended = run("held.py", KERNELS_ON="cuda")
    assert ended.stdout == "held\n", ended.stderr[-2000:]


@pytest.mark.parametrize("dtype", HALVES)
def test_add_norm_is_the_sum_and_its_norm(dtype):
    x, delta, norm = (numbers(5, 64, dtype=dtype), numbers(5, 64, dtype=dtype, seed=1), RMSNorm(64, 1e-5))
    norm = norm.to(dtype).requires_grad_(False)
    norm.weight.copy_(numbers(64, seed=2))
    total, normed = add_rms_norm(x, delta, norm.weight, 1e-5)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, norm(x + delta))
    alone, normed = add_rms_norm(x, None, norm.weight, 1e-5)
    assert alone is x
    assert torch.equal(normed, norm(x))


@pytest.mark.parametrize("working", [torch.float32, None])
@pytest.mark.parametrize("dtype", HALVES)
def test_queries_and_keys_are_rotated_and_keys_and_values_stored(dtype, working):
    slots, angles = torch.tensor([4, 0, 2]), numbers(3, 8)
    cos, sin = angles.cos().to(working or dtype), angles.sin().to(working or dtype)
    qkv = numbers(3, 8 * 16, dtype=dtype)
    query, key, value = torch.split(qkv.view(3, 8, 16), [4, 2, 2], 1)
    keys, values = (torch.zeros(5, 2, 16, dtype=dtype) for _ in "kv")
    rotated = rotate_and_store(qkv, cos, sin, slots, keys, values, 4)
    assert torch.equal(rotated, rotate(query, cos[:, None], sin[:, None]))
    assert torch.equal(keys[slots], rotate(key, cos[:, None], sin[:, None]))
    assert torch.equal(values[slots], value)
    assert not keys[[1, 3]].any()


def test_gate_is_silu_of_the_left_half_times_the_right():
    gate, up = numbers(3, 10), numbers(3, 10, seed=1)
    assert torch.equal(silu_mul(torch.cat((gate, up), 1), torch.float32), F.silu(gate) * up)


def test_rows_look_at_their_own_keys_wherever_they_lie():
    query, keys, values = numbers(5, 4, 8), numbers(20, 2, 8, seed=1), numbers(20, 2, 8, seed=2)
    rows = PackedRows(
        torch.tensor([0, 2, 2, 5]).int(), torch.tensor([9, 3, 1, 0]).int(), torch.tensor([6, 4, 0]).int(),
        3, 6, torch.arange(5),
    )  # fmt: skip
    said = attend(query, keys, values, rows)
    for head in range(4):
        own = slice(9, 15), head // 2
        chance = (query[:2, head] @ keys[own].T / 8**0.5).softmax(-1)
        torch.testing.assert_close(said[:2, head], chance @ values[own])
    assert not said[2:].any()  # a row without keys


def test_a_plan_is_made_for_what_will_be_repeated():
    """cuDNN takes longer for a plan than a pass does: a probe's shape, seen once, is not worth one."""
    found = []
    with attention.plan_for_shape():
        found.append(attention._PLANS_FOR_SHAPE.get())
    assert [*found, attention._PLANS_FOR_SHAPE.get()] == [True, False]


def test_fp8_scales_are_multiplied_back():
    x, weight = numbers(3, 32), numbers(16, 32, seed=1)
    small = quantize_rows(x)
    assert float(small.values.float().abs().amax(1).min()) == 448
    stored = quantize_rows(weight)
    product = float8_matmul(small, stored.values, stored.scale)
    back = (small.values.float() * small.scale[:, None]) @ (stored.values.float() * stored.scale[:, None]).T
    torch.testing.assert_close(apply_scales(product, torch.float32), back)
    assert float((back - x @ weight.T).norm() / (x @ weight.T).norm()) < 0.05


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(forbid_end=True), Sampling(end_last=True)])
def test_summary_is_what_rules_judge_by(sampling, predicted, ids, monkeypatch):
    from lastword.models.kernels import vocabulary

    monkeypatch.setattr(vocabulary, "MAX_NUMBERS", 16)  # two columns at a time
    logits = 3 * numbers(5, 8)
    logits[0, ids.mask] = 20.0
    logits[1, ids.end] = 20.0
    logits[2] = 1.0
    prediction = predicted(logits, sampling=sampling)
    banned = [ids.end] * sampling.forbid_end + [ids.mask]
    unscored = [ids.end] * sampling.forbid_end + [*ids.ends] * sampling.end_last
    found = score_columns(logits, banned=banned, unscored=unscored)
    assert torch.equal(found.candidate[None], prediction.tokens)
    assert torch.equal(found.argmax[None], prediction.argmax_tokens)
    assert int(found.candidate[2]) == 0
    for name in ("confidence", "margin", "entropy", "gap"):
        assert torch.equal(getattr(found, name)[None], getattr(prediction, name)), name
    assert torch.equal(found.candidate_logit, logits.gather(1, found.candidate[:, None])[:, 0])
    torch.testing.assert_close(found.logsumexp, logits.logsumexp(-1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_surfaces(bad):
    logits = numbers(3, 8)
    logits[1, 4] = bad
    logits[2] = -torch.inf
    found = score_columns(logits)
    assert (found.candidate_logit.isfinite() & found.logsumexp.isfinite()).tolist() == [True, False, False]
