"""Models in int8: products on a CPU, their plain twin, loading, and decoding with every cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import lastword
import lastword.models.load as loading
from lastword.engines.base import compute_dtype
from lastword.errors import SettingError
from lastword.models.kernels import int8
from lastword.models.kernels.int8 import (
    int8_matmul,
    int8_matmul_plain,
    max_level,
    pack_weight,
    quantize_rows_int8,
    quantize_weight,
)
from lastword.models.load import load
from lastword.models.quantize import Int8Linear, quantize
from lastword.models.weights import fingerprint, model_key

TOKENS = torch.arange(36).view(3, 12) + 40
READ = torch.arange(6, 12).expand(3, -1)


@pytest.fixture(scope="module", params=["llada-tiny", "dream-tiny"])
def folder(request, golden):
    return golden / request.param


@pytest.fixture(scope="module")
def pair(folder):
    """A checkpoint as stored, and in int8."""
    return load(folder, device="cpu", dtype="float32"), load(folder, device="cpu", dtype="float32", quantization="int8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 64), (0, 64), (3, 5, 100), (130, 257)])
def test_products_equal_those_of_the_plain_twin(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    values, scale = quantize_weight(torch.randn(37, shape[-1], generator=generator))
    rows = quantize_rows_int8(x)
    product = int8_matmul(rows, pack_weight(values), scale)
    assert product.dtype == dtype
    torch.testing.assert_close(product, int8_matmul_plain(rows, values, scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_errors_are_half_a_level(dtype):
    x = torch.randn(50, 64).to(dtype) * torch.logspace(-12, 12, 50)[:, None].to(dtype)
    rows = quantize_rows_int8(x)
    back = (rows.values.float() - max_level() - 1) * rows.scale
    assert bool(((back - x.float()).abs() <= 0.501 * rows.scale).all())
    weight = torch.randn(70, 64).to(dtype)
    values, scale = quantize_weight(weight)
    assert bool(((values * scale[:, None] - weight.float()).abs() <= 0.501 * scale[:, None]).all())


def test_a_large_weight_is_quantized_in_parts(monkeypatch):
    weight = torch.randn(33, 16)
    whole = quantize_weight(weight)
    monkeypatch.setattr(int8, "MAX_NUMBERS", 40)
    assert all(torch.equal(part, all_rows) for part, all_rows in zip(quantize_weight(weight), whole))


def test_zeros_and_numbers_that_are_not_finite():
    weight, scale = quantize_weight(torch.zeros(4, 8))
    x = torch.stack((torch.zeros(8), torch.full((8,), torch.nan), torch.full((8,), 1e-40), torch.ones(8)))
    output = int8_matmul(quantize_rows_int8(x), pack_weight(weight), scale)
    assert not output[[0, 2, 3]].any()
    assert bool(output[1].isnan().all())


@pytest.mark.full
@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "AVX2_VNNI", "AVX512_CORE", "ALL"])
def test_products_do_not_overflow_on_older_cpus(isa):
    """Without VNNI, sums of two products have 16 bits, which 8 bits by 8 bits exceed."""
    code = (
        "import torch; from lastword.models.kernels.int8 import *; x = torch.full((3, 500), 7.0)\n"
        "w = torch.full((40, 500), 0.3); values, scale = quantize_weight(w); rows = quantize_rows_int8(x)\n"
        "torch.testing.assert_close(int8_matmul(rows, pack_weight(values), scale), x @ w.T)\n"
        "print(max_level())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert int(done.stdout) in ((63,) if isa in ("SSE41", "AVX2", "AVX512_CORE") else (63, 127))


def test_layers_and_head_are_quantized_and_nothing_else(pair):
    stored, quantized = pair
    for name, module in quantized.network.named_modules():
        before = stored.network.get_submodule(name)
        assert isinstance(module, Int8Linear) == isinstance(before, torch.nn.Linear), name
        if not isinstance(module, Int8Linear):
            assert all(torch.equal(a, b) for a, b in zip(module.parameters(False), before.parameters(False)))
    assert not any(parameter.requires_grad for parameter in quantized.parameters())


def test_a_model_quantized_in_memory_is_the_loaded_one(folder, pair):
    model = load(folder, device="cpu", dtype="float32")
    quantize(model.network, "int8")
    assert torch.equal(model(TOKENS, READ), pair[1](TOKENS, READ))


def test_logits_are_close_to_those_of_the_stored_weights(pair):
    stored, quantized = (model(TOKENS, READ) for model in pair)
    assert not torch.equal(stored, quantized)
    assert float(torch.nn.functional.cosine_similarity(stored.flatten(), quantized.flatten(), dim=0)) > 0.98


def test_packed_and_padded_rows_agree(pair, monkeypatch):
    _, model = pair
    padded = model(TOKENS, READ)
    monkeypatch.setattr(model, "packs", True)
    torch.testing.assert_close(model(TOKENS, READ), padded, atol=2e-2, rtol=2e-2)


def test_it_is_another_model(pair):
    stored, quantized = pair
    assert fingerprint(stored) != fingerprint(quantized)
    assert model_key(stored) != model_key(quantized)
    assert compute_dtype(quantized) == "float32, int8 weights"


def test_without_onednn_the_plain_twin_computes(folder, pair, monkeypatch):
    monkeypatch.setattr(int8, "_onednn_level", lambda: None)
    model = load(folder, device="cpu", dtype="float32", quantization="int8")
    assert model.network.head.weight.layout == torch.strided
    assert float((model(TOKENS, READ) - pair[1](TOKENS, READ)).abs().max()) < (0.1 if max_level() == 127 else 5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cache", [None, "prefix", "dual", "feature"])
def test_batches_decode_with_every_cache(cache, dtype):
    model = lastword.load("tiny-dream-base", device="cpu", dtype=dtype, quantization="int8", calibration=None)
    settings = {"length": lastword.Fixed(16), "unmask": "threshold:0.9", "cache": cache, "block": 8}
    answers = lastword.generate(model, ["2 + 3", "Solve 3a + 4 = 19."], **settings)
    assert all(0 < len(answer.tokens) <= 16 for answer in answers)


def test_int8_is_for_cpus(monkeypatch):
    monkeypatch.setattr(loading, "as_device", lambda _: torch.device("cuda"))
    with pytest.raises(SettingError, match=r"add device='cpu', or use quantization='fp8'"):
        load("tiny-llada-base", quantization="int8")
