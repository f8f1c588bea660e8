"""Weights in fp8, multiplied on a CPU as the numbers they stand for."""

from __future__ import annotations

import pytest
import torch

import lastword
from lastword.engines.base import compute_dtype
from lastword.errors import SettingError
from lastword.models.weights import fingerprint, model_key

TOKENS = torch.arange(36).view(3, 12) + 40
READ = torch.arange(6, 12).expand(3, -1)


@pytest.fixture(scope="module", params=["llada-tiny", "dream-tiny"])
def pair(request, golden):
    """A checkpoint as stored, and in fp8."""
    folder = golden / request.param
    return lastword.load(folder, device="cpu"), lastword.load(folder, device="cpu", quantization="fp8")


def test_the_products_of_layers_are_stored_in_fp8_and_nothing_else(pair):
    stored, quantised = (model.state_dict() for model in pair)
    for name, tensor in stored.items():
        product = ".attention." in name or ".mlp." in name
        small = product and name.endswith(".weight")
        assert quantised[name].dtype == (torch.float8_e4m3fn if small else tensor.dtype), name
        assert quantised[name].shape == tensor.shape
    assert {*quantised} - {*stored} == {
        name.replace(".weight", ".scale") for name in stored if ".attention." in name or ".mlp." in name
        if name.endswith(".weight")
    }  # fmt: skip


def test_every_output_has_its_own_scale(pair):
    stored, quantised = (model.state_dict() for model in pair)
    name = "network.blocks.0.mlp.down"
    back = quantised[f"{name}.weight"].float() * quantised[f"{name}.scale"][:, None]
    wanted = stored[f"{name}.weight"]
    # Three bits of mantissa: half a sixteenth of a number, or of the least normal one of its row.
    error = (back - wanted).abs() / wanted.abs().clamp(min=wanted.abs().amax(1, keepdim=True) / 2**14)
    assert float(error.max()) <= 1 / 16 + 1e-6


def test_logits_are_close_to_those_of_the_stored_weights(pair):
    stored, quantised = (model(TOKENS, READ) for model in pair)
    assert not torch.equal(stored, quantised)
    likeness = torch.nn.functional.cosine_similarity(stored.flatten(), quantised.flatten(), dim=0)
    assert float(likeness) > 0.97


def test_packed_and_plain_agree(pair, monkeypatch):
    _, model = pair
    plain = model(TOKENS, READ)
    monkeypatch.setattr(model, "packs", True)
    torch.testing.assert_close(model(TOKENS, READ), plain, atol=2e-2, rtol=2e-2)


def test_it_is_another_model(pair):
    stored, quantised = pair
    assert fingerprint(stored) != fingerprint(quantised)
    assert model_key(stored) != model_key(quantised)
    assert (compute_dtype(stored), compute_dtype(quantised)) == ("float32", "float32, fp8 weights")


def test_a_model_in_fp8_decodes(golden):
    model = lastword.load("tiny-llada-base", device="cpu", quantization="fp8", calibration=None)
    answer = lastword.generate(model, "What is 2 + 3?", length=lastword.Fixed(16))
    assert len(answer.tokens) <= 16


def test_other_weights_are_refused():
    with pytest.raises(SettingError, match=r"quantization='fp4'.*must be 'fp8' or 'int8'"):
        lastword.load("tiny-llada-base", quantization="fp4")
    with pytest.raises(SettingError, match="the toy has no weights"):
        lastword.load("toy", quantization="fp8")
