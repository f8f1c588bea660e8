"""Safetensors straight into a module: one tensor at a time, on the device, in the wanted dtype."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lastword.errors import CheckpointError, SettingError

# How safetensors spells the dtypes a model may be stored in.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Some exports carry the rotary frequencies; we compute them, in float32, from the configuration.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor: from the index where there is one, else from the single file."""
    if (folder / INDEX).is_file():
        try:
            weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
            outside = sorted({file for file in weight_map.values() if Path(file).name != file})
            files = {name: folder / file for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as broken:
            raise CheckpointError(
                f"{folder / INDEX} is not a safetensors index ({broken}); download it again"
            ) from broken
        if outside:
            raise CheckpointError(
                f"{folder / INDEX} names {outside[0]!r}, which does not lie in the folder itself; an index "
                "names the files beside it"
            )
        missing = sorted({file.name for file in files.values() if not file.is_file()})
        if missing:
            raise CheckpointError(
                f"{folder} lacks the weight files {', '.join(missing)} that its index names; "
                "finish the download"
            )
        return files
    if (folder / SINGLE).is_file():
        with _opened(folder / SINGLE, "cpu") as file:
            return dict.fromkeys(file.keys(), folder / SINGLE)
    raise CheckpointError(
        f"{folder} holds no weights: neither {SINGLE} nor {INDEX} is there; "
        "give a folder in the authors' Hugging Face format (.bin files must be converted first)"
    )


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype the checkpoint was saved in, read from its first tensor."""
    name, path = next(iter(sorted(tensor_files(folder).items())))
    with _opened(path, "cpu") as file:
        return DTYPES.get(file.get_slice(name).get_dtype(), torch.float32)


def load_weights(
    module: nn.Module,
    tensors: Mapping[str, str],
    layers: int,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Fill `module` (built on the meta device) from `folder`.

    `tensors` maps our parameter names to the checkpoint's, `{i}` standing for the layer. Every
    tensor goes to the device and dtype on its own, so no second copy of the model ever exists.
    """
    names = {
        theirs.format(i=layer): ours.format(i=layer)
        for ours, theirs in tensors.items()
        for layer in (range(layers) if "{i}" in ours else range(1))
    }
    wanted = dict(module.named_parameters())  # tied parameters appear once, under the first name
    names = {theirs: ours for theirs, ours in names.items() if ours in wanted}
    files = tensor_files(folder)
    _check_names(set(names), set(files), folder, tensors)

    by_file: dict[Path, list[str]] = {}
    for theirs in names:
        by_file.setdefault(files[theirs], []).append(theirs)
    tied = {id(parameter): ours for ours, parameter in wanted.items()}
    loaded: dict[str, nn.Parameter] = {}
    for path, members in by_file.items():
        with _opened(path, str(device)) as file:
            held = set(file.keys())
            for theirs in members:
                if theirs not in held:
                    raise CheckpointError(
                        f"{INDEX} says {path.name} holds {theirs}, which it does not; download both again"
                    )
                ours = names[theirs]
                expected = tuple(wanted[ours].shape)
                given = tuple(file.get_slice(theirs).get_shape())
                if given != expected:
                    raise CheckpointError(
                        f"tensor {theirs} in {path.name} has shape {list(given)} but config.json asks for "
                        f"{list(expected)}; config and weights belong to different models"
                    )
                tensor = file.get_tensor(theirs).to(dtype)
                loaded[ours] = nn.Parameter(tensor, requires_grad=False)

    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            setattr(owner, name, loaded[tied[id(parameter)]])


def fingerprint(model: Any) -> str:
    """Of the weights: a few numbers of every tensor, so that a retrained model is another model."""
    digest = sha256()
    for name, tensor in model.state_dict().items() if hasattr(model, "state_dict") else ():
        some = tensor.flatten()[:64].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + some.tobytes())
    return digest.hexdigest()[:16]


def model_key(model: Any) -> str:
    """Of what a model's lengths depend on: weights, their dtype, and the ids that end an answer.

    A model without weights we can see is known by its `name` (`Adapter(..., name="my-model")`).
    """
    tensors = model.state_dict() if hasattr(model, "state_dict") else {}
    name = getattr(model, "name", None)
    if not tensors and not name:
        raise SettingError(
            f"this {type(model).__name__} shows no weights, so a calibration could not tell it from another "
            'model: give it a name of its own, as in Adapter(..., name="my-model, trained in May")'
        )
    dtypes = [str(tensor.dtype) for tensor in tensors.values()]
    known = f"{name} {fingerprint(model)} {dtypes} {astuple(model.ids)}"
    return sha256(known.encode()).hexdigest()[:16]


def _check_names(
    wanted: set[str], given: set[str], folder: Path, tensors: Mapping[str, str]
) -> None:
    missing, extra = sorted(wanted - given), sorted(given - wanted)
    # A tied head is often stored all the same; everything else we do not know is an error.
    extra = [
        name
        for name in extra
        if not name.endswith(IGNORED_SUFFIXES) and name != tensors["head.weight"]
    ]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"{len(missing)} tensors are missing (first: {missing[0]})")
        if extra:
            parts.append(f"{len(extra)} are not part of the architecture (first: {extra[0]})")
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json: {' and '.join(parts)}; "
            "check that the folder is one checkpoint, completely downloaded"
        )


def _opened(path: Path, device: str) -> safe_open:
    try:
        return safe_open(str(path), framework="pt", device=device)
    except (SafetensorError, OSError) as broken:
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({broken}); download it again"
        ) from broken
