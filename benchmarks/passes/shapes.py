"""Models of any shape with random weights, whose values do not change the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lastword.canvas.tokens import TokenIds
from lastword.errors import CheckpointError
from lastword.io.files import user_path
from lastword.models.architectures import ARCHITECTURES, Architecture
from lastword.models.layers import TransformerConfig
from lastword.models.load import read_config
from lastword.models.native import NativeModel
from lastword.models.quantize import QUANTIZATIONS, quantize
from lastword.validation import check_choice, short_repr

SPREAD = 0.02  # standard deviation of the weights, about that of a model before training


@dataclass(frozen=True)
class ModelShape:
    """An architecture with a shape, and its name in records."""

    name: str
    architecture: Architecture
    shape: TransformerConfig


LLADA_8B = ModelShape(
    "llada-8b",
    ARCHITECTURES["llada"],
    TransformerConfig(
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        intermediate_size=12288,
        vocab_size=126464,
        rope_theta=500000.0,
        norm_eps=1e-5,
        max_seq_len=4096,
        qkv_bias=False,
        tied_head=False,
        rotate_in_float32=True,
    ),
)
DREAM_7B = ModelShape(
    "dream-7b",
    ARCHITECTURES["dream"],
    TransformerConfig(
        hidden_size=3584,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        intermediate_size=18944,
        vocab_size=152064,
        rope_theta=1000000.0,
        norm_eps=1e-6,
        max_seq_len=131072,
        qkv_bias=True,
        tied_head=False,
        rotate_in_float32=False,
    ),
)
TINY = ModelShape(
    "tiny",
    ARCHITECTURES["llada"],
    TransformerConfig(
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        intermediate_size=128,
        vocab_size=512,
        rope_theta=10000.0,
        norm_eps=1e-5,
        max_seq_len=4096,
        qkv_bias=False,
        tied_head=False,
        rotate_in_float32=True,
    ),
)
NAMED = {known.name: known for known in (LLADA_8B, DREAM_7B, TINY)}


def shape_of(name: str) -> ModelShape:
    """Return the shape of a known name, a checkpoint folder or a config.json; weights are not read."""
    if name in NAMED:
        return NAMED[name]
    path = user_path(name)
    folder = path.parent if path.name == "config.json" else path
    if not folder.is_dir():
        raise CheckpointError(
            f"--shape {short_repr(name)} was given, which is neither a known shape nor a folder; give "
            f"{', '.join(NAMED)}, a checkpoint's folder, or its config.json"
        )
    architecture, _, shape = read_config(folder)
    return ModelShape(folder.resolve().name, architecture, shape)


def random_model(
    model_shape: ModelShape, device: torch.device, dtype: torch.dtype, quantization: str | None = None, seed: int = 0
) -> NativeModel:
    """Return a model of this shape with weights drawn on the device."""
    shape = model_shape.shape
    last = shape.vocab_size - 1
    ids = TokenIds(mask=last, end=last - 1, pad=last - 1, vocab_size=shape.vocab_size)
    with torch.device("meta"):
        model = NativeModel(model_shape.architecture, shape, ids)
    drawn = draw(model, device, dtype, seed)
    assert isinstance(drawn, NativeModel)
    if shape.tied_head:
        drawn.network.head.weight = drawn.network.embedding.weight
    if quantization is not None:
        check_choice("benchmarks.passes", "quantization", quantization, *QUANTIZATIONS)
        quantize(drawn.network, quantization)
    return drawn


def draw(module: torch.nn.Module, device: torch.device, dtype: torch.dtype, seed: int = 0) -> torch.nn.Module:
    """Return a module that was built on the meta device with weights drawn on `device`."""
    module = module.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in module.parameters():
        parameter.requires_grad_(False).normal_(std=SPREAD, generator=generator)
    return module
