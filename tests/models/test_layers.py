"""The layers of the transformer: rotary embedding, norm, and the columns that a model reads and sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.passes.shapes import TINY
from benchmarks.study import fuse
from lastword.models import layers
from lastword.models.kernels.fused import rotate
from lastword.models.layers import RMSNorm, rotary_cos_sin, rotary_frequencies

LLADA = replace(TINY.shape, rope_theta=500000.0)
DREAM = replace(LLADA, rotate_in_float32=False)
POSITIONS = torch.arange(3000, 3064)


def heads(dtype):
    return torch.randn(1, 4, 64, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


def cos_sin(config, dtype):
    return rotary_cos_sin(POSITIONS, rotary_frequencies(config, POSITIONS.device), config, dtype)


@pytest.mark.parametrize("config", [LLADA, DREAM])
def test_in_float32_both_families_rotate_by_the_formula(config):
    x = heads(torch.float32)
    frequencies = config.rope_theta ** (-torch.arange(0, 16, 2).double() / 16)
    angles = POSITIONS[:, None].double() * frequencies
    left, right = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    rotated = rotate(x, *cos_sin(config, torch.float32))
    torch.testing.assert_close(rotated.double(), expected, atol=2e-3, rtol=0)


def test_in_bfloat16_llada_rotates_in_float32_and_casts_back():
    x = heads(torch.bfloat16)
    exact = rotate(x.float(), *cos_sin(LLADA, torch.float32)).bfloat16()
    assert torch.equal(rotate(x, *cos_sin(LLADA, torch.bfloat16)), exact)


def test_in_bfloat16_dream_casts_the_rotation_first():
    x = heads(torch.bfloat16)
    cos, sin = (part.bfloat16() for part in cos_sin(DREAM, torch.float32))
    left, right = x.chunk(2, -1)
    expected = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    assert torch.equal(rotate(x, *cos_sin(DREAM, torch.bfloat16)), expected)


@pytest.mark.parametrize("config", [LLADA, DREAM])
def test_angles_stay_float32_in_a_bfloat16_model(config):
    # Position 3001 times a frequency rounded to bf16 would be off by whole turns.
    exact, rounded = cos_sin(config, torch.float32)[0], cos_sin(config, torch.bfloat16)[0]
    torch.testing.assert_close(rounded.float(), exact, atol=4e-3, rtol=0)


def test_rms_norm_is_computed_in_float32_and_weighted_after_the_cast():
    norm = RMSNorm(8, 1e-5).bfloat16()
    norm.weight.data = torch.linspace(0.5, 2, 8).bfloat16()
    x = 300 * torch.randn(300, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(norm(x), norm.weight * scaled.bfloat16())
    assert not torch.equal(norm(x), (norm.weight * scaled).bfloat16())


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return request.getfixturevalue(request.param)


def test_the_rotation_of_each_family_is_in_its_config(model):
    assert model.network.config.rotate_in_float32 == (model.architecture.name == "LLaDA")


def test_padding_on_either_side_changes_nothing(model):
    tokens = torch.tensor([[5, 42, 17, 100, 63]])
    read = torch.arange(1, 5)[None]
    alone = model(tokens, read)
    padded = torch.nn.functional.pad(tokens, (3, 2), value=model.ids.pad)
    valid = torch.nn.functional.pad(torch.ones_like(tokens), (3, 2)).bool()
    torch.testing.assert_close(model(padded, read + 3, valid=valid), alone, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_fused_passes_return_the_same_logits(model, monkeypatch):
    for owner, name in ((RMSNorm, "forward"), (layers, "rotate")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restored afterwards
    tokens, read = torch.arange(20)[None] + 30, torch.arange(20)[None]
    separate = model(tokens, read)
    fuse(backend="eager")
    torch.testing.assert_close(model(tokens, read), separate)
