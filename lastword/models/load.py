"""`load`: a name or a folder in, a model ready to decode out."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from lastword.errors import CheckpointError, SettingError
from lastword.models.dream import Dream
from lastword.models.llada import LLaDA
from lastword.models.tokenizer import Tokenizer
from lastword.models.toy import Toy
from lastword.models.weights import load_weights, stored_dtype
from lastword.tokens import TokenIds

ARCHITECTURES: dict[str, type[LLaDA] | type[Dream]] = {"llada": LLaDA, "dream": Dream}

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def load(
    name: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    turn_end: int | Literal["auto"] | None = "auto",
    revision: str | None = None,
) -> LLaDA | Dream | Toy:
    """Load a LLaDA or Dream checkpoint, or the `toy` model.

    `name` is a folder in the authors' Hugging Face format or a hub name such as
    `GSAI-ML/LLaDA-8B-Instruct`; hub names go through huggingface_hub, its cache and its offline
    mode. `device="auto"` takes a GPU where there is one; `dtype="auto"` keeps the stored dtype on
    a GPU and computes in float32 on a CPU. A folder without a tokenizer loads too: prompts are
    then token ids. `turn_end` sets the second token that ends an answer; "auto" asks the tokenizer.
    """
    if str(name) == "toy":
        return Toy()
    folder = _folder(name, revision)
    config = _json(folder / "config.json", required=True)
    kind = str(config.get("model_type", "")).lower()
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{folder / 'config.json'} says model_type={config.get('model_type')!r}; we know "
            f"{', '.join(ARCHITECTURES)}: wrap any other masked model with lastword.models.Adapter"
        )
    architecture = ARCHITECTURES[kind]
    try:
        shape = architecture.shape_of(config)
    except (KeyError, TypeError) as missing:
        raise CheckpointError(
            f"{folder / 'config.json'} lacks or garbles the field {missing}, which a {kind} model "
            "needs; use the configuration published with the weights"
        ) from missing
    tokenizer = Tokenizer.from_folder(folder)
    ids = _ids(folder, config, shape.vocabulary, tokenizer, architecture.turn_end)
    if turn_end != "auto":
        ids = replace(ids, turn_end=turn_end)

    where = _device(device)
    with torch.device("meta"):
        model = architecture(shape, ids, tokenizer)
    load_weights(
        model.network,
        architecture.tensors,
        shape.layers,
        folder,
        where,
        _dtype(dtype, where, folder),
    )
    return model.eval()


def _folder(name: str | Path, revision: str | None) -> Path:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    text = str(name)
    looks_like_hub = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    if not looks_like_hub:
        near = difflib.get_close_matches(text, ["toy"], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CheckpointError(
            f"there is no folder {text!r}, and it is no hub name (organisation/model) and no "
            f"built-in name (toy){hint}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as refused:
        raise CheckpointError(
            f"{text!r} is no local folder and could not be fetched from the hub ({refused}); "
            "check the name and the network, or download the folder and give its path"
        ) from refused


def _json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise CheckpointError(
                f"{path.parent} has no {path.name}; give a folder in the authors' Hugging Face format"
            )
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as broken:
        raise CheckpointError(f"{path} is not JSON ({broken}); download it again") from broken
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; download it again")
    return content


def _ids(
    folder: Path,
    config: dict[str, Any],
    vocabulary: int,
    tokenizer: Tokenizer | None,
    turn_end: str,
) -> TokenIds:
    """Special ids: config first, generation config where it is silent, tokenizer for the turn end."""
    known = {k: v for k, v in _json(folder / "generation_config.json").items() if v is not None}
    known.update({k: v for k, v in config.items() if v is not None})
    ends = known.get("eos_token_id")
    ends = list(ends) if isinstance(ends, list) else [] if ends is None else [ends]
    if "mask_token_id" not in known or not ends:
        raise CheckpointError(
            f"{folder} names no {'mask' if 'mask_token_id' not in known else 'end'} token; add "
            "mask_token_id and eos_token_id to config.json"
        )
    second = ends[1] if len(ends) > 1 else tokenizer.id_of(turn_end) if tokenizer else None
    try:
        return TokenIds(
            mask=known["mask_token_id"],
            end=ends[0],
            pad=known.get("pad_token_id", ends[0]),
            vocabulary=vocabulary,
            turn_end=second,
        )
    except SettingError as wrong:
        raise CheckpointError(f"{folder} cannot be decoded with: {wrong}") from wrong


def _device(device: str | torch.device) -> torch.device:
    if device != "auto":
        try:
            return torch.device(device)
        except RuntimeError as wrong:
            raise SettingError(
                f"device {device!r} is unknown to torch; give auto, cpu, cuda, cuda:1 or mps"
            ) from wrong
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _dtype(dtype: str | torch.dtype, device: torch.device, folder: Path) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else stored_dtype(folder)
    if dtype not in DTYPES:
        raise SettingError(f"dtype {dtype!r} is unknown; give auto or one of {', '.join(DTYPES)}")
    return DTYPES[dtype]
