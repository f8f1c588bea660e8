"""`load`: a name or a folder in, a model ready to decode out."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Literal, TypeVar

import torch

from lastword.calibration.ratios import FILE_NAME, Calibration
from lastword.canvas.tokens import TokenIds
from lastword.embedded import EMBEDDED
from lastword.embedded import FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError, SettingError
from lastword.io.files import user_path
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS
from lastword.models.config import FamilyConfig, GenerationConfig, SpecialIds, read_json
from lastword.models.device import as_device, as_dtype
from lastword.models.dream import Dream
from lastword.models.layers import TransformerConfig
from lastword.models.llada import LLaDA
from lastword.models.native import NativeModel
from lastword.models.path_safety import is_plain_file
from lastword.models.quantize import to_float8
from lastword.models.tokenizer import Tokenizer
from lastword.models.toy import Toy
from lastword.models.weights import (
    HEAD,
    check_files,
    load_weights,
    model_key,
    stored_dtype,
    tensor_files,
    tensor_names,
)
from lastword.validation import (
    check_choice,
    check_list,
    check_type,
    short_repr,
)

ARCHITECTURES: dict[str, type[NativeModel]] = {"llada": LLaDA, "dream": Dream}

BUILT_IN = ("toy", *EMBEDDED)

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


def load(
    name: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    turn_ends: Sequence[int] | Literal["auto"] = "auto",
    calibration: str | Path | None = "auto",
    revision: str | None = None,
    weights: str | None = None,
) -> NativeModel | Toy:
    """Load a LLaDA or Dream checkpoint, one of the embedded models, or the `toy` model.

    `name` is an embedded model such as `tiny-llada-base`, a folder in the authors' Hugging Face
    format or a hub name such as `GSAI-ML/LLaDA-8B-Instruct`; hub names go through huggingface_hub, its
    cache and its offline mode. `device="auto"` takes a GPU where there is one; `dtype="auto"` keeps the
    stored dtype on a GPU and computes in float32 on a CPU. A folder without a tokenizer loads too:
    prompts are then token ids. `turn_ends` are further ids that end an answer; "auto" takes those of
    the config and the tokenizer. `calibration` is the file `lastword calibrate` wrote; "auto" takes the
    folder's lengths.json where there is one, None takes none. `weights="fp8"` quantises the products of the
    layers: half the memory, and faster on a GPU that multiplies in fp8; elsewhere right and no faster. A
    calibration learnt without it is another model's.
    """
    _check_kinds(name, turn_ends, calibration, revision)
    if weights is not None:
        check_choice("load", "weights", weights, "fp8")
    where, wanted = as_device(device), as_dtype(dtype)
    if str(name) == "toy":
        _check_toy(
            device=device if device != "auto" and where.type != "cpu" else None,
            dtype=dtype if wanted not in (None, torch.float64) else None,
            turn_ends=turn_ends if turn_ends != "auto" else None,
            revision=revision,
            weights=weights,
        )
        return _with_calibration(Toy(), _calibration(None, calibration))
    own_ends = None if turn_ends == "auto" else tuple(turn_ends)
    folder = _folder(name, revision)
    lengths = _calibration(folder, calibration)
    model = _loaded(folder, where, wanted, own_ends)
    if weights == "fp8":
        to_float8(model.network)
    return _with_calibration(model.eval(), lengths)


def _loaded(
    folder: Path,
    where: torch.device,
    wanted: torch.dtype | None,
    turn_ends: tuple[int, ...] | None,
) -> NativeModel:
    """Load the model of a checkpoint folder."""
    architecture, config, shape = described(folder)
    generation = GenerationConfig()
    if is_plain_file(folder / "generation_config.json"):
        generation = GenerationConfig.read(folder / "generation_config.json")
    tokenizer = Tokenizer.from_folder(folder)
    ids = _ids(folder, config, generation, shape.vocab_size, tokenizer, architecture.turn_end)
    if turn_ends is not None:
        ids = replace(ids, turn_ends=turn_ends)

    # Names are compared before anything is built: a wrong number of layers is told at once.
    files, head = tensor_files(folder), architecture.tensors[HEAD]
    names = tensor_names(architecture.tensors, shape.num_layers, tied_head=shape.tied_head)
    check_files(folder, files, names, head)
    if wanted is None:
        wanted = torch.float32 if where.type == "cpu" else stored_dtype(files)
    with torch.device("meta"):
        model = architecture(shape, ids, tokenizer)
    model.default_max_new_tokens = generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    load_weights(model.network, names, files, head, where, wanted)
    return model


_Model = TypeVar("_Model", NativeModel, Toy)


def described(folder: Path) -> tuple[type[NativeModel], FamilyConfig, TransformerConfig]:
    """The family a folder's config.json is of, what it says, and the architecture that makes."""
    source = folder / "config.json"
    data = read_json(source)
    kind = data.get("model_type")
    architecture = ARCHITECTURES.get(kind.lower()) if isinstance(kind, str) else None
    if architecture is None:
        raise CheckpointError(
            f"{source} says model_type={short_repr(kind)}; we know {', '.join(ARCHITECTURES)}: wrap any "
            "other masked model with lastword.Adapter"
        )
    config = architecture.config.of(data, source)
    try:
        return architecture, config, config.shape()
    except CheckpointError as wrong:
        raise CheckpointError(f"{source} cannot be built: {wrong}") from wrong


def _calibration(folder: Path | None, calibration: str | Path | None) -> tuple[Calibration, Path] | None:
    """The calibration that was asked for, or the folder's own, and where it is from."""
    path = None if calibration in (None, "auto") else user_path(calibration)
    if calibration == "auto" and folder is not None and is_plain_file(folder / FILE_NAME):
        path = folder / FILE_NAME
    return None if path is None else (Calibration.from_file(path), path)


def _with_calibration(model: _Model, lengths: tuple[Calibration, Path] | None) -> _Model:
    """The model with its calibration, if there is one and it is the model's."""
    if lengths is not None:
        model.calibration, source = lengths
        model.calibration.check_model(model_key(model), source)
    return model


def _check_kinds(name: object, turn_ends: object, calibration: object, revision: object) -> None:
    """Refuse what is of another kind than it must be, before anything is read."""
    check_type("load", "name", name, (str, Path), "the name or folder of a model")
    if not (isinstance(turn_ends, str) and turn_ends == "auto"):
        check_list("load", "turn_ends", turn_ends, '"auto" or a list of token ids')
    kinds = (str, Path, NoneType)
    check_type("load", "calibration", calibration, kinds, 'a file, "auto" or None')
    check_type("load", "revision", revision, (str, NoneType), "a branch, tag or commit, or None")


def _check_toy(**ignored: object) -> None:
    """Refuse what a model without weights could only ignore."""
    for name, value in ignored.items():
        if value is not None:
            raise SettingError(
                f"load('toy', {name}={short_repr(value)}) was given; the toy has no weights and computes in "
                f"float64 on the CPU: leave {name} out, or load another model"
            )


def _folder(name: str | Path, revision: str | None) -> Path:
    text = str(name)
    folder = user_path(name)
    local = EMBEDDED_FOLDER / text if text in EMBEDDED else None
    if text and os.path.isdir(folder):
        local = folder
    if local is not None:
        if revision is not None:
            raise SettingError(
                f"load({short_repr(text)}, revision={short_repr(revision)}) was given; only hub names "
                "have revisions, "
                "and this is a folder here: leave revision out"
            )
        return local
    looks_like_hub = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    if not looks_like_hub:
        near = difflib.get_close_matches(text, BUILT_IN, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else f" ({', '.join(BUILT_IN)})"
        raise CheckpointError(
            f"there is no folder {short_repr(text)}, and it is no hub name (organisation/model) and no "
            f"built-in name{hint}; `lastword models` lists those there are"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as refused:
        raise CheckpointError(
            f"{short_repr(text)} is no local folder and could not be fetched from the hub "
            f"({refused!s:.500}); "
            "check the name and the network, or download the folder and give its path"
        ) from refused


def _ids(
    folder: Path,
    config: SpecialIds,
    generation: SpecialIds,
    vocabulary: int,
    tokenizer: Tokenizer | None,
    turn_end: str,
) -> TokenIds:
    """Special ids: config first, generation config where it is silent, tokenizer for the turn end."""
    mask = generation.mask_token_id if config.mask_token_id is None else config.mask_token_id
    pad = generation.pad_token_id if config.pad_token_id is None else config.pad_token_id
    ends = config.eos_token_id or generation.eos_token_id
    if mask is None or not ends:
        lacking = "mask" if mask is None else "end"
        raise CheckpointError(
            f"{folder} names no {lacking} token; add mask_token_id and eos_token_id to config.json"
        )
    if tokenizer and tokenizer.size > vocabulary:
        raise CheckpointError(
            f"the tokenizer in {folder} knows {tokenizer.size} ids and config.json states a vocabulary of "
            f"{vocabulary}; they belong to different models: copy both again from one checkpoint"
        )
    spoken = tokenizer.id_of(turn_end) if tokenizer else None
    try:
        return TokenIds(
            mask=mask,
            end=ends[0],
            pad=ends[0] if pad is None else pad,
            vocab_size=vocabulary,
            turn_ends=(*ends[1:], *(() if spoken is None else (spoken,))),
        )
    except SettingError as wrong:
        raise CheckpointError(f"{folder} cannot be decoded with: {wrong}") from wrong
