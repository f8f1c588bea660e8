"""Tests that the plain loop has the same logits and the same tokens as our models and decoding loop."""

from dataclasses import replace

import torch

import lastword
from benchmarks.passes.plain import PlainModel, plain_pass
from benchmarks.passes.shapes import TINY, ModelShape, random_model
from lastword.models.architectures import ARCHITECTURES

CPU = torch.device("cpu")


def plain_twin(model):
    """Return a plain model with the weights of a native model."""
    network = model.network
    plain = PlainModel(network.config)
    plain.embedding.weight.data = network.embedding.weight
    plain.norm.weight.data, plain.head.weight.data = network.norm.weight, network.head.weight
    for theirs, ours in zip(plain.layers, network.blocks):
        theirs.norms[0].weight.data = ours.attention_norm.weight
        theirs.norms[1].weight.data = ours.mlp_norm.weight
        state = {
            **{f"{n}.{p}": t for n in ("query", "key", "value", "out") for p, t in
               getattr(ours.attention, n).named_parameters()},
            **{f"{n}.weight": getattr(ours.mlp, n).weight for n in ("gate", "up", "down")},
        }  # fmt: skip
        assert not theirs.load_state_dict(state, strict=False).unexpected_keys
    return plain


def test_the_plain_model_has_the_logits_of_the_native_model():
    model = random_model(TINY, CPU, torch.float32)
    tokens = torch.randint(0, 500, (1, 30))
    ours = model(tokens, torch.arange(30)[None])
    torch.testing.assert_close(plain_twin(model)(tokens), ours, rtol=1e-4, atol=1e-5)


def test_grouped_heads_and_biases_have_the_logits_of_the_native_model():
    shape = replace(TINY.shape, num_kv_heads=2, qkv_bias=True, rotate_in_float32=False)
    model = random_model(ModelShape("grouped", ARCHITECTURES["dream"], shape), CPU, torch.float32)
    tokens = torch.randint(0, 500, (1, 30))
    ours = model(tokens, torch.arange(1, 30)[None])  # Dream predicts a token at the column before it
    torch.testing.assert_close(plain_twin(model)(tokens)[:, :-1], ours, rtol=1e-4, atol=1e-5)


def test_the_plain_loop_writes_the_tokens_of_the_decoding_loop():
    model = random_model(TINY, CPU, torch.float32, seed=3)
    prompt, slots, mask = [5, 7, 11, 13], 12, model.ids.mask
    answer = lastword.generate(model, prompt, length=f"fixed:{slots}")
    plain, tokens = plain_twin(model), torch.tensor([prompt + [mask] * slots])
    for _ in range(slots):
        tokens = plain_pass(plain, tokens, mask)
    assert tokens[0, 4:].tolist() == answer.canvas
    assert mask not in answer.canvas
