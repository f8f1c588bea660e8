"""`load`: a name or a folder in, a model ready to decode out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from lastword.calibration.ratios import FILE_NAME, Calibration
from lastword.canvas.ids import TokenIds
from lastword.embedded import EMBEDDED
from lastword.embedded import FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError, SettingError
from lastword.models.config import Config
from lastword.models.dream import Dream
from lastword.models.llada import LLaDA
from lastword.models.native import NativeModel
from lastword.models.predictor import USUAL_SLOTS
from lastword.models.tokenizer import Tokenizer
from lastword.models.toy import Toy
from lastword.models.weights import load_weights, model_key, stored_dtype

ARCHITECTURES: dict[str, type[NativeModel]] = {"llada": LLaDA, "dream": Dream}

BUILT_IN = ("toy", *EMBEDDED)

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
    turn_ends: Sequence[int] | Literal["auto"] = "auto",
    calibration: str | Path | None = "auto",
    revision: str | None = None,
) -> NativeModel | Toy:
    """Load a LLaDA or Dream checkpoint, one of the embedded models, or the `toy` model.

    `name` is an embedded model such as `tiny-llada-base`, a folder in the authors' Hugging Face
    format or a hub name such as `GSAI-ML/LLaDA-8B-Instruct`; hub names go through huggingface_hub, its
    cache and its offline mode. `device="auto"` takes a GPU where there is one; `dtype="auto"` keeps the
    stored dtype on a GPU and computes in float32 on a CPU. A folder without a tokenizer loads too:
    prompts are then token ids. `turn_ends` are further ids that end an answer; "auto" takes those of
    the config and the tokenizer. `calibration` is the file `lastword calibrate` wrote; "auto" takes the
    folder's lengths.json where there is one, None takes none.
    """
    if str(name) == "toy":
        return _with_calibration(Toy(), None, calibration)
    folder = _folder(name, revision)
    config = Config.read(folder / "config.json")
    kind = config.data.get("model_type")
    architecture = ARCHITECTURES.get(str(kind).lower())
    if architecture is None:
        raise CheckpointError(
            f"{config.source} says model_type={kind!r}; we know {', '.join(ARCHITECTURES)}: wrap any "
            "other masked model with lastword.Adapter"
        )
    shape = architecture.shape_of(config)
    tokenizer = Tokenizer.from_folder(folder)
    ids = _ids(folder, config, shape.vocabulary, tokenizer, architecture.turn_end)
    if turn_ends != "auto":
        ids = replace(ids, turn_ends=tuple(turn_ends))

    where = _device(device)
    with torch.device("meta"):
        model = architecture(shape, ids, tokenizer)
    model.slots = Config.read(folder / "generation_config.json", required=False).whole(
        "max_new_tokens", USUAL_SLOTS
    )
    load_weights(
        model.network,
        architecture.tensors,
        shape.layers,
        folder,
        where,
        _dtype(dtype, where, folder),
    )
    return _with_calibration(model.eval(), folder, calibration)


_Model = TypeVar("_Model", NativeModel, Toy)


def _with_calibration(model: _Model, folder: Path | None, calibration: str | Path | None) -> _Model:
    """The model with its calibration, if there is one and it is the model's."""
    path = None if calibration in (None, "auto") else Path(str(calibration)).expanduser()
    if calibration == "auto" and folder is not None and (folder / FILE_NAME).exists():
        path = folder / FILE_NAME
    if path is not None:
        model.calibration = Calibration.read(path)
        model.calibration.check(model_key(model), path)
    return model


def _folder(name: str | Path, revision: str | None) -> Path:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    text = str(name)
    if text in EMBEDDED:
        return EMBEDDED_FOLDER / text
    looks_like_hub = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    if not looks_like_hub:
        near = difflib.get_close_matches(text, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CheckpointError(
            f"there is no folder {text!r}, and it is no hub name (organisation/model) and no "
            f"built-in name ({', '.join(BUILT_IN)}){hint}"
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


def _ids(
    folder: Path, config: Config, vocabulary: int, tokenizer: Tokenizer | None, turn_end: str
) -> TokenIds:
    """Special ids: config first, generation config where it is silent, tokenizer for the turn end."""
    known = config.or_else(Config.read(folder / "generation_config.json", required=False))
    given: Any = known.data.get("eos_token_id")
    ends = given if isinstance(given, list) else [] if given is None else [given]
    if "mask_token_id" not in known.data or not ends:
        lacking = "mask" if "mask_token_id" not in known.data else "end"
        raise CheckpointError(
            f"{folder} names no {lacking} token; add mask_token_id and eos_token_id to config.json"
        )
    spoken = tokenizer.id_of(turn_end) if tokenizer else None
    try:
        return TokenIds(
            mask=known.data["mask_token_id"],
            end=ends[0],
            pad=known.whole("pad_token_id", ends[0], least=0),
            vocabulary=vocabulary,
            turn_ends=(*ends[1:], *(() if spoken is None else (spoken,))),
        )
    except SettingError as wrong:
        raise CheckpointError(f"{folder} cannot be decoded with: {wrong}") from wrong


def _device(device: str | torch.device) -> torch.device:
    if device != "auto":
        try:
            return torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, NotImplementedError) as wrong:
            raise SettingError(
                f"device {str(device)!r} cannot be used here ({str(wrong).splitlines()[0]}); give auto, "
                "or cpu, cuda, cuda:1 or mps where the machine and its torch have them"
            ) from wrong
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _dtype(dtype: str | torch.dtype, device: torch.device, folder: Path) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else stored_dtype(folder)
    chosen = DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise SettingError(f"dtype {dtype!r} is unknown; give auto or one of {', '.join(DTYPES)}")
    return chosen
