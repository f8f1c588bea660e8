"""Models of any real shape with random weights: arithmetic does not depend on the values of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import torch

from lastword.canvas.tokens import TokenIds
from lastword.errors import CheckpointError, SettingError
from lastword.io.files import user_path
from lastword.models.dream import Dream
from lastword.models.layers import Shape
from lastword.models.llada import LLaDA
from lastword.models.load import described
from lastword.models.native import NativeModel
from lastword.validation import shown

SPREAD = 0.02  # standard deviation of the weights, about that of a model before training


@dataclass(frozen=True)
class Architecture:
    """A family, its shape, and what a record calls it."""

    name: str
    family: type[NativeModel]
    shape: Shape


LLADA_8B = Architecture(
    "llada-8b",
    LLaDA,
    Shape(
        width=4096,
        layers=32,
        heads=32,
        kv_heads=32,
        mlp_width=12288,
        vocabulary=126464,
        rope_theta=500000.0,
        norm_eps=1e-5,
        positions=4096,
        qkv_bias=False,
        tied_head=False,
        rotate_in_float32=True,
    ),
)
DREAM_7B = Architecture(
    "dream-7b",
    Dream,
    Shape(
        width=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        mlp_width=18944,
        vocabulary=152064,
        rope_theta=1000000.0,
        norm_eps=1e-6,
        positions=131072,
        qkv_bias=True,
        tied_head=False,
        rotate_in_float32=False,
    ),
)
TINY = Architecture(
    "tiny",
    LLaDA,
    Shape(
        width=64,
        layers=2,
        heads=4,
        kv_heads=4,
        mlp_width=128,
        vocabulary=512,
        rope_theta=10000.0,
        norm_eps=1e-5,
        positions=4096,
        qkv_bias=False,
        tied_head=False,
        rotate_in_float32=True,
    ),
)
NAMED = {known.name: known for known in (LLADA_8B, DREAM_7B, TINY)}


def architecture_of(name: str) -> Architecture:
    """A known name, a checkpoint folder, or a config.json; of a folder its shape alone is read."""
    if name in NAMED:
        return NAMED[name]
    path = user_path(name)
    folder = path.parent if path.name == "config.json" else path
    if not folder.is_dir():
        raise CheckpointError(
            f"--shape {shown(name)} was given, which is neither a known shape nor a folder; give "
            f"{', '.join(NAMED)}, a checkpoint's folder, or its config.json"
        )
    family, _, shape = described(folder)
    return Architecture(folder.resolve().name, family, shape)


def random_model(
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
    weights: str = "plain",
    seed: int = 0,
) -> NativeModel:
    """A model of the shape, its weights drawn on the device."""
    shape = architecture.shape
    last = shape.vocabulary - 1
    ids = TokenIds(mask=last, end=last - 1, pad=last - 1, vocabulary=shape.vocabulary)
    with torch.device("meta"):
        model = architecture.family(shape, ids)
    drawn = draw(model, device, dtype, seed)
    assert isinstance(drawn, NativeModel)
    if shape.tied_head:
        drawn.network.head.weight = drawn.network.embedding.weight
    return stored_as(drawn, weights)


def draw(
    module: torch.nn.Module, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> torch.nn.Module:
    """A module made of shapes alone, with weights on the device."""
    module = module.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in module.parameters():
        parameter.requires_grad_(False).normal_(std=SPREAD, generator=generator)
    return module


def stored_as(model: NativeModel, weights: str) -> NativeModel:
    """The model with its layers' weights kept in another format, where this version has it."""
    if weights == "plain":
        return model
    if weights != "fp8":
        raise SettingError(f"--weights {shown(weights)} was given; give plain or fp8")
    try:
        import_module("lastword.models.quantize").to_float8(model.network)
    except ModuleNotFoundError as missing:
        raise SettingError(
            "--weights fp8 was given; this version of lastword keeps weights as they are: leave it out"
        ) from missing
    return model
