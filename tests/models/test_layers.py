from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.study import fuse
from lastword.models.layers import RMSNorm, Rotation, TransformerConfig

SHAPE = TransformerConfig(
    hidden_size=64,
    num_layers=1,
    num_heads=4,
    num_kv_heads=4,
    intermediate_size=64,
    vocab_size=8,
    rope_theta=500000.0,
    norm_eps=1e-5,
    max_seq_len=4096,
    qkv_bias=False,
    tied_head=False,
    rotate_in_float32=True,
)
LLADA, DREAM = SHAPE, replace(SHAPE, rotate_in_float32=False)
FAR = torch.arange(3000, 3064)[None]


def heads(dtype):
    return torch.randn(1, 4, 64, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


def by_formula(x, positions, theta):
    """Rotary embedding in float64, straight from the paper."""
    frequencies = theta ** (-torch.arange(0, 16, 2).double() / 16)
    angles = positions[0, :, None].double() * frequencies
    left, right = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


@pytest.mark.parametrize("shape", [LLADA, DREAM])
def test_in_float32_both_families_rotate_by_the_formula(shape):
    x = heads(torch.float32)
    rotated = Rotation.from_positions(FAR, shape, torch.float32)(x)
    torch.testing.assert_close(rotated.double(), by_formula(x, FAR, shape.rope_theta), atol=2e-3, rtol=0)


def test_in_bfloat16_llada_rotates_in_float32_and_casts_back():
    x = heads(torch.bfloat16)
    exact = Rotation.from_positions(FAR, LLADA, torch.float32)(x.float()).bfloat16()
    assert torch.equal(Rotation.from_positions(FAR, LLADA, torch.bfloat16)(x), exact)


def test_in_bfloat16_dream_casts_the_rotation_first():
    x = heads(torch.bfloat16)
    rotation = Rotation.from_positions(FAR, DREAM, torch.float32)
    cos, sin = rotation.cos.bfloat16(), rotation.sin.bfloat16()
    left, right = x.chunk(2, -1)
    expected = x * cos + torch.cat((-right, left), -1) * sin
    assert torch.equal(Rotation.from_positions(FAR, DREAM, torch.bfloat16)(x), expected)


def test_in_bfloat16_the_two_families_differ():
    x = heads(torch.bfloat16)
    llada, dream = (Rotation.from_positions(FAR, shape, torch.bfloat16)(x) for shape in (LLADA, DREAM))
    assert (llada != dream).float().mean() > 0.1


@pytest.mark.parametrize("shape", [LLADA, DREAM])
def test_angles_stay_float32_in_a_bfloat16_model(shape):
    # Position 3001 times a frequency rounded to bf16 would be off by whole turns.
    exact = Rotation.from_positions(FAR, shape, torch.float32)
    rounded = Rotation.from_positions(FAR, shape, torch.bfloat16)
    torch.testing.assert_close(rounded.cos.float(), exact.cos, atol=4e-3, rtol=0)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_the_rule_of_each_family_is_in_its_shape(name, request):
    model = request.getfixturevalue(name)
    assert model.network.config.rotate_in_float32 == (name == "llada")


def test_rms_norm_is_computed_in_float32_and_weighted_after_the_cast():
    norm = RMSNorm(8, 1e-5).bfloat16()
    norm.weight.data = torch.linspace(0.5, 2, 8).bfloat16()
    x = 300 * torch.randn(300, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(norm(x), norm.weight * scaled.bfloat16())
    assert not torch.equal(norm(x), (norm.weight * scaled).bfloat16())


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_padding_on_either_side_changes_nothing(name, request):
    model = request.getfixturevalue(name)
    tokens = torch.tensor([[5, 42, 17, 100, 63]])
    read = torch.arange(1, 5)[None]
    alone = model(tokens, read)
    padded = torch.nn.functional.pad(tokens, (3, 2), value=model.ids.pad)
    valid = torch.nn.functional.pad(torch.ones_like(tokens), (3, 2)).bool()
    torch.testing.assert_close(model(padded, read + 3, valid=valid), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_reading_some_columns_equals_reading_all(name, request):
    model = request.getfixturevalue(name)
    tokens = torch.arange(20)[None] + 30
    every = model(tokens, torch.arange(20)[None])
    some = torch.tensor([[3, 7, 19]])
    torch.testing.assert_close(model(tokens, some), every[:, some[0]], atol=1e-5, rtol=0)


def test_every_column_sees_columns_on_its_right(llada):
    tokens = torch.arange(10)[None] + 30
    other = tokens.clone()
    other[0, 9] = 7
    read = torch.tensor([[0]])
    assert not torch.allclose(llada(tokens, read), llada(other, read))


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_fused_passes_say_the_same(name, request, monkeypatch):
    for owner, method in ((RMSNorm, "forward"), (Rotation, "__call__")):
        monkeypatch.setattr(owner, method, getattr(owner, method))  # put back afterwards
    model, tokens = request.getfixturevalue(name), torch.arange(20)[None] + 30
    read = torch.arange(20)[None]
    apart = model(tokens, read)
    fuse(backend="eager")
    torch.testing.assert_close(model(tokens, read), apart)
