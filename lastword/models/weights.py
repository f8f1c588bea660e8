"""Loading of safetensors into a module, one tensor at a time, and hashes that identify the weights of a model."""

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
from lastword.models.architectures import Architecture
from lastword.models.config import WeightIndex, is_plain_file
from lastword.models.layers import TransformerConfig
from lastword.models.quantize import Int8Linear
from lastword.validation import short_repr

# The dtypes in which weights may be stored, by their names in safetensors.
STORED_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# The parameter names of the two tensors that may be tied.
EMBEDDING, HEAD = "embedding.weight", "head.weight"

# Rotary frequencies in some exports; they are computed in float32 from the configuration instead.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor by the tensor's name, from the index or from the only weight file."""
    if is_plain_file(folder / INDEX):
        weight_map = WeightIndex.read(folder / INDEX).weight_map
        outside = sorted(name for name in set(weight_map.values()) if Path(name).name != name)
        if outside:
            raise CheckpointError(
                f"{folder / INDEX} names {short_repr(outside[0])}, which does not lie in the folder itself; "
                "an index names files in its own folder"
            )
        return {tensor: folder / name for tensor, name in weight_map.items()}
    if is_plain_file(folder / SINGLE):
        with _open(folder / SINGLE) as file:
            return dict.fromkeys(file.keys(), folder / SINGLE)
    raise CheckpointError(
        f"{folder} holds no weights: neither {SINGLE} nor {INDEX} exists; give a folder in the authors' "
        "Hugging Face format (.bin files must be converted first)"
    )


def check_files(folder: Path, files: Mapping[str, Path], names: Mapping[str, str], head: str) -> None:
    """Raise CheckpointError unless a folder's tensors are those of its config, in files that exist.

    `files` and `names` have the checkpoint's tensor names as keys. The output head `head` may be stored even if tied.
    """
    missing, extra = names.keys() - files.keys(), files.keys() - names.keys() - {head}
    extra = {short_repr(name) for name in extra if not name.endswith(IGNORED_SUFFIXES)}
    verdicts = (("tensors are missing", missing), ("are not part of the architecture", extra))
    problems = [f"{len(tensors)} {verdict} (first: {min(tensors)})" for verdict, tensors in verdicts if tensors]
    if problems:
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json: {' and '.join(problems)}; "
            "check that the folder is one checkpoint, completely downloaded"
        )
    absent = sorted(path.name for path in set(files.values()) if not is_plain_file(path))
    if absent:
        raise CheckpointError(
            f"{folder} lacks the weight files {', '.join(map(short_repr, absent[:9]))} that its index "
            "names; finish the download"
        )


class CheckpointWeights:
    """The tensors of a checkpoint folder; their names are checked against its config.json."""

    def __init__(self, folder: Path, architecture: Architecture, config: TransformerConfig) -> None:
        self._files = tensor_files(folder)
        self._head = architecture.tensors[HEAD]
        self._names = {  # parameter names by the checkpoint's tensor names
            theirs.format(i=layer): ours.format(i=layer)
            for ours, theirs in architecture.tensors.items()
            if not (config.tied_head and ours == HEAD)
            for layer in range(config.num_layers if "{i}" in ours else 1)
        }
        check_files(folder, self._files, self._names, self._head)

    @property
    def dtype(self) -> torch.dtype:
        """The stored dtype of the first tensor by name."""
        name, path = min(self._files.items())
        with _open(path) as file:
            return _dtype_of(file, name, path)

    def load_into(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Fill a module that was built on the meta device; its parameters will not require gradients.

        Tensors are read, moved, cast and quantized one at a time, so memory never holds a second copy of the model.
        """
        is_tied = HEAD not in self._names.values()
        # The largest tensors are first, when memory is empty. Closing the file after each one unmaps what was read.
        for name, ours in sorted(self._names.items(), key=lambda names: names[1] not in (EMBEDDING, HEAD)):
            path, (owner, _, leaf) = self._files[name], ours.rpartition(".")
            layer = module.get_submodule(owner)
            with _open(path, device) as file:
                is_int8 = isinstance(layer, Int8Linear) and leaf == "weight"  # quantized from the stored dtype
                target = _dtype_of(file, name, path) if is_int8 else dtype
                tensor = _read_tensor(file, name, path, getattr(layer, leaf).shape, target)
                set_parameter(layer, leaf, tensor)
                if ours == EMBEDDING and is_tied:
                    if self._head in self._files:
                        _check_tied(tensor, self._files[self._head], self._head)
                    set_parameter(module.get_submodule("head"), leaf, getattr(layer, leaf))
        module.requires_grad_(False)


def fingerprint(model: Any) -> str:
    """Return a hash of the first 64 numbers of every tensor; retraining a model changes it."""
    if isinstance(known := getattr(model, "fingerprint", None), str):  # the weights are in another process
        return known
    digest = sha256()
    for name, tensor in _tensors(model).items():
        first = tensor.flatten()[:64].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + first.tobytes())
    return digest.hexdigest()[:16]


def model_key(model: Any) -> str:
    """Return a hash of everything that answer lengths depend on: weights, dtype, and ids that end an answer.

    A model without visible weights is identified by its `name` (`Adapter(..., name="my-model")`).
    """
    if isinstance(known := getattr(model, "model_key", None), str):  # the weights are in another process
        return known
    name, tensors = getattr(model, "name", None), _tensors(model)
    if not tensors and not name:
        raise SettingError(
            f"this {type(model).__name__} has no visible weights, so a calibration could not tell it from "
            'another model: give it a name, as in Adapter(..., name="my-model, trained in May")'
        )
    dtypes = [str(tensor.dtype) for tensor in tensors.values()]
    identity = f"{name} {fingerprint(model)} {dtypes} {astuple(model.ids)}"
    return sha256(identity.encode()).hexdigest()[:16]


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a model, without int8 weights in the layout of oneDNN: their scales identify them."""
    tensors = model.state_dict() if hasattr(model, "state_dict") else {}
    return {name: tensor for name, tensor in tensors.items() if tensor.layout == torch.strided}


def set_parameter(layer: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Set a parameter of a layer, which quantizes it if its weights are in int8."""
    if isinstance(layer, Int8Linear) and name == "weight":
        layer.set_weight(tensor)
    else:
        setattr(layer, name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False))


def _read_tensor(file: Any, name: str, path: Path, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor cast to `dtype`; CheckpointError if its shape is wrong or its numbers are not finite."""
    _dtype_of(file, name, path)
    stored = file.get_slice(name).get_shape()
    if tuple(stored) != tuple(shape):
        raise CheckpointError(
            f"tensor {name} in {path.name} has shape {list(stored)} but config.json requires "
            f"{list(shape)}; config and weights belong to different models"
        )
    tensor: torch.Tensor = file.get_tensor(name).to(dtype)
    if not torch.stack(tensor.aminmax()).isfinite().all():
        raise CheckpointError(
            f"tensor {name} in {path.name} holds NaN or Inf in {dtype}; load it in another dtype, or download it again"
        )
    return tensor


def _dtype_of(file: Any, name: str, path: Path) -> torch.dtype:
    """Return the dtype of a stored tensor; CheckpointError if the file lacks it or its dtype is not supported."""
    try:
        stored = file.get_slice(name).get_dtype()
    except SafetensorError as error:
        raise CheckpointError(
            f"according to {INDEX}, {path.name} holds {name}, which it does not; download both again"
        ) from error
    if stored not in STORED_DTYPES:
        raise CheckpointError(
            f"tensor {name} in {path.name} is stored as {stored}, and weights are read as one of "
            f"{', '.join(STORED_DTYPES)}; give the checkpoint as published, not quantised"
        )
    return STORED_DTYPES[stored]


def _check_tied(embedding: torch.Tensor, path: Path, head: str) -> None:
    """Raise CheckpointError if the head stored in a file differs from the embedding to which it is tied."""
    with _open(path, embedding.device) as file:
        stored = _read_tensor(file, head, path, embedding.shape, embedding.dtype)
    if not torch.equal(stored, embedding):
        raise CheckpointError(
            f"config.json ties the head to the embedding, and {path.name} stores another head, {head}; "
            "use the configuration published with the weights"
        )


def _open(path: Path, device: torch.device | str = "cpu") -> safe_open:
    try:
        return safe_open(str(path), framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}); download it again") from error
