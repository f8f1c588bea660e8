"""Safetensors straight into a module: one tensor at a time, on the device, in the wanted dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lastword.errors import CheckpointError, SettingError
from lastword.models.config import WeightIndex
from lastword.models.path_safety import is_plain_file
from lastword.validation import short_repr

# How safetensors spells the dtypes a model may be stored in.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Our names of the two that may be one.
EMBEDDING, HEAD = "embedding.weight", "head.weight"

# Some exports carry the rotary frequencies; we compute them, in float32, from the configuration.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor: from the index where there is one, else from the single file."""
    if is_plain_file(folder / INDEX):
        shards = WeightIndex.read(folder / INDEX).weight_map
        outside = sorted(name for name in set(shards.values()) if Path(name).name != name)
        if outside:
            raise CheckpointError(
                f"{folder / INDEX} names {short_repr(outside[0])}, which does not lie in the folder "
                "itself; an "
                "index names the files beside it"
            )
        paths = {name: folder / name for name in set(shards.values())}
        return {tensor: paths[name] for tensor, name in shards.items()}
    if is_plain_file(folder / SINGLE):
        with _opened(folder / SINGLE, "cpu") as file:
            return dict.fromkeys(file.keys(), folder / SINGLE)
    raise CheckpointError(
        f"{folder} holds no weights: neither {SINGLE} nor {INDEX} is there; "
        "give a folder in the authors' Hugging Face format (.bin files must be converted first)"
    )


def tensor_names(tensors: Mapping[str, str], layers: int, *, tied_head: bool) -> dict[str, str]:
    """The checkpoint's tensor names to ours, from a family's table in which `{i}` stands for the layer."""
    return {
        theirs.format(i=layer): ours.format(i=layer)
        for ours, theirs in tensors.items()
        if not (tied_head and ours == HEAD)
        for layer in range(layers if "{i}" in ours else 1)
    }


def check_files(folder: Path, files: Mapping[str, Path], names: Mapping[str, str], head: str) -> None:
    """Refuse a folder whose tensors are not those of its config, or whose files are not all there.

    `head` is what the checkpoint calls its head: a tied one is often stored all the same. Everything else
    we do not know is an error.
    """
    missing, extra = sorted(names.keys() - files.keys()), sorted(files.keys() - names.keys())
    extra = [name for name in extra if not name.endswith(IGNORED_SUFFIXES) and name != head]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"{len(missing)} tensors are missing (first: {missing[0]})")
        if extra:
            parts.append(f"{len(extra)} are not part of the architecture (first: {short_repr(extra[0])})")
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json: {' and '.join(parts)}; "
            "check that the folder is one checkpoint, completely downloaded"
        )
    lacking = sorted(path.name for path in set(files.values()) if not is_plain_file(path))
    if lacking:
        raise CheckpointError(
            f"{folder} lacks the weight files {', '.join(map(short_repr, lacking[:9]))} that its index "
            "names; finish the download"
        )


def stored_dtype(files: Mapping[str, Path]) -> torch.dtype:
    """The dtype the checkpoint was saved in, read from its first tensor."""
    name, path = min(files.items())
    with _opened(path, "cpu") as file:
        return _dtype_of(file, name, path)


def load_weights(
    module: nn.Module,
    names: Mapping[str, str],
    files: Mapping[str, Path],
    head: str,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Fill `module` (built on the meta device) with the tensors `names` from `files`.

    Every tensor goes to the device and dtype on its own, so no second copy of the model ever exists.
    """
    wanted = dict(module.named_parameters())  # tied parameters appear once, under the first name
    tied = {id(parameter): ours for ours, parameter in wanted.items()}
    by_file: dict[Path, list[str]] = {}
    for theirs in names:
        by_file.setdefault(files[theirs], []).append(theirs)
    loaded: dict[str, nn.Parameter] = {}
    for path, members in by_file.items():
        with _opened(path, str(device)) as file:
            for theirs in members:
                ours = names[theirs]
                whole = wanted[ours]
                tensor = _tensor(file, theirs, path, tuple(whole.shape), dtype)
                if ours == EMBEDDING and HEAD not in wanted and head in files:
                    _check_tied(tensor, files[head], head, str(device))
                loaded[ours] = nn.Parameter(tensor, requires_grad=False)

    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            setattr(owner, name, loaded[tied[id(parameter)]])


def fingerprint(model: Any) -> str:
    """Of the weights: a few numbers of every tensor, so that a retrained model is another model."""
    if isinstance(told := getattr(model, "fingerprint", None), str):  # its weights are elsewhere
        return told
    digest = sha256()
    tensors = model.state_dict() if hasattr(model, "state_dict") else {}
    for name, tensor in tensors.items():
        first = tensor.flatten()[:64].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + first.tobytes())
    return digest.hexdigest()[:16]


def model_key(model: Any) -> str:
    """Of what a model's lengths depend on: weights, their dtype, and the ids that end an answer.

    A model without weights we can see is known by its `name` (`Adapter(..., name="my-model")`).
    """
    if isinstance(told := getattr(model, "model_key", None), str):  # its weights are elsewhere
        return told
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


def _tensor(file: Any, name: str, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return one tensor of a file, or raise if it is not of this shape or not finite."""
    _dtype_of(file, name, path)
    given = tuple(file.get_slice(name).get_shape())
    if given != shape:
        raise CheckpointError(
            f"tensor {name} in {path.name} has shape {list(given)} but config.json asks for "
            f"{list(shape)}; config and weights belong to different models"
        )
    tensor = file.get_tensor(name).to(dtype)
    if not torch.stack(tensor.aminmax()).isfinite().all():
        raise CheckpointError(
            f"tensor {name} in {path.name} holds NaN or Inf in {dtype}; load it in another dtype, or "
            "download it again"
        )
    return tensor


def _dtype_of(file: Any, name: str, path: Path) -> torch.dtype:
    """The dtype a tensor is stored in, if a model can compute in it."""
    try:
        stored = file.get_slice(name).get_dtype()
    except SafetensorError as absent:
        raise CheckpointError(
            f"{INDEX} says {path.name} holds {name}, which it does not; download both again"
        ) from absent
    if stored not in DTYPES:
        raise CheckpointError(
            f"tensor {name} in {path.name} is stored as {stored}, and weights are read as one of "
            f"{', '.join(DTYPES)}; give the checkpoint as published, not quantised"
        )
    return DTYPES[stored]


def _check_tied(embedding: torch.Tensor, path: Path, head: str, device: str) -> None:
    """Refuse a stored head that a tied one would put aside."""
    with _opened(path, device) as file:
        stored = _tensor(file, head, path, tuple(embedding.shape), embedding.dtype)
    if not torch.equal(stored, embedding):
        raise CheckpointError(
            f"config.json ties the head to the embedding, and {path.name} stores another head, {head}; "
            "use the configuration published with the weights"
        )


def _opened(path: Path, device: str) -> safe_open:
    try:
        return safe_open(str(path), framework="pt", device=device)
    except (SafetensorError, OSError) as broken:
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({broken}); download it again"
        ) from broken
