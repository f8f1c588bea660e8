"""`load`: models by name or from a checkpoint folder."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Literal

import torch

from lastword.calibration import FILE_NAME, Calibration, find_saved
from lastword.canvas.tokens import TokenIds
from lastword.embedded import EMBEDDED, FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError, SettingError
from lastword.io.files import user_path
from lastword.models.architectures import ARCHITECTURES, Architecture, ModelConfig
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS, check_device
from lastword.models.config import GenerationConfig, SpecialIds, is_plain_file, read_json
from lastword.models.gguf import GGUFFile
from lastword.models.layers import TransformerConfig
from lastword.models.native import NativeModel
from lastword.models.quantize import QUANTIZATIONS, quantize
from lastword.models.tokenizer import Tokenizer
from lastword.models.toy import Toy
from lastword.models.weights import CheckpointWeights, model_key
from lastword.validation import check_choice, check_list, check_type, checks_arguments, short_repr

BUILT_IN = ("toy", *EMBEDDED)

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]

LARGE = 10**8  # parameters of a model that is fast in bfloat16 and with several threads on a CPU

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@checks_arguments()
def load(
    name: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    turn_ends: Sequence[int] | Literal["auto"] = "auto",
    calibration: str | Path | None = "auto",
    revision: str | None = None,
    quantization: str | None = None,
) -> NativeModel | Toy:
    """Load a LLaDA or Dream checkpoint, an embedded model, or the `toy` model.

    `name` is an embedded model such as `tiny-llada-base`, a folder in the authors' Hugging Face format, a GGUF file, or
    a hub name such as `GSAI-ML/LLaDA-8B-Instruct`, which huggingface_hub fetches or finds in its cache; `revision` is a
    branch, tag or commit there. `device="auto"` selects a GPU if there is one. `dtype="auto"` keeps the stored dtype on
    a GPU. On a CPU it selects bfloat16 if the checkpoint is stored in bfloat16, has at least 100M parameters, is not
    quantised to int8, and the CPU multiplies in bfloat16; otherwise float32. If there is no tokenizer, prompts must be
    given as token ids.

    `turn_ends` are further ids that end an answer; "auto" uses those of the config and the tokenizer. `calibration` is
    a file written by `lastword calibrate`; "auto" uses lengths.json in the folder if it exists, None uses no file.
    `quantization="fp8"` quantises the linear layers, which halves their memory and is faster on GPUs that multiply in
    fp8. "int8" quantises linear layers and output head for a CPU; inputs have 7 bits instead of 8 on one without VNNI
    instructions. A calibration measured without quantisation does not apply to a quantised model.
    """
    check_type("load", "name", name, (str, Path), "the name or folder of a model")
    if not (isinstance(turn_ends, str) and turn_ends == "auto"):
        check_list("load", "turn_ends", turn_ends, '"auto" or a list of token ids')
    check_type("load", "calibration", calibration, (str, Path, NoneType), 'a file, "auto" or None')
    check_type("load", "revision", revision, (str, NoneType), "a branch, tag or commit, or None")
    if quantization is not None:
        check_choice("load", "quantization", quantization, *QUANTIZATIONS)
    target, target_dtype = as_device(device), as_dtype(dtype)
    if quantization == "int8" and target.type != "cpu":
        raise SettingError(
            f"load(quantization='int8') was given for the device {target}; int8 products run on a CPU: "
            "add device='cpu', or use quantization='fp8' on a GPU"
        )
    if str(name) == "toy":
        _check_toy(
            device=device if device != "auto" and target.type != "cpu" else None,
            dtype=dtype if target_dtype not in (None, torch.float64) else None,
            turn_ends=turn_ends if turn_ends != "auto" else None,
            revision=revision,
            quantization=quantization,
        )
    folder = None if str(name) == "toy" else _find_folder(name, revision)
    source = None if calibration in (None, "auto") else user_path(calibration)
    if calibration == "auto" and folder is not None and is_plain_file(folder / FILE_NAME):
        source = folder / FILE_NAME
    lengths = None if source is None else Calibration.from_file(source)
    model: NativeModel | Toy = Toy()
    if folder is not None:
        ends = None if turn_ends == "auto" else tuple(turn_ends)
        model = _load_folder(folder, target, target_dtype, ends, quantization)
        model.eval()
    if lengths is not None and source is not None:
        lengths.check_model(model_key(model), source)
    if calibration == "auto" and lengths is None:
        lengths = find_saved(lambda: model_key(model))
    model.calibration = lengths
    return model


def as_device(device: str | torch.device) -> torch.device:
    """Return the torch device; "auto" selects CUDA, else MPS, else the CPU."""
    if isinstance(device, str) and device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    return check_device("load", device)


def as_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """Return the dtype to compute in, or None for "auto"; SettingError if it is unknown."""
    check_type("load", "dtype", dtype, (str, torch.dtype), 'a dtype, as in "bfloat16"')
    if dtype == "auto":
        return None
    known = DTYPES.get(str(dtype).removeprefix("torch."))
    if known is None:
        raise SettingError(f"dtype {short_repr(dtype)} is unknown; give auto or one of {', '.join(DTYPES)}")
    return known


def read_config(folder: Path) -> tuple[Architecture, ModelConfig, TransformerConfig]:
    """Return the architecture, the content and the transformer configuration of a folder's config.json."""
    source = folder / "config.json"
    data = read_json(source)
    kind = data.get("model_type")
    architecture = ARCHITECTURES.get(kind.lower()) if isinstance(kind, str) else None
    if architecture is None:
        raise CheckpointError(
            f"{source} has model_type={short_repr(kind)}; supported are {', '.join(ARCHITECTURES)}: wrap any "
            "other masked model with lastword.Adapter"
        )
    config = architecture.config.parse(data, source)
    try:
        return architecture, config, config.transformer()
    except CheckpointError as error:
        raise CheckpointError(f"{source} cannot be built: {error}") from error


def _load_folder(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    turn_ends: tuple[int, ...] | None,
    quantization: str | None,
) -> NativeModel:
    file = GGUFFile(folder) if folder.is_file() else None
    architecture, config, transformer = file.model_config if file else read_config(folder)
    generation = GenerationConfig() if file else GenerationConfig.of_folder(folder)
    tokenizer = file.tokenizer() if file else Tokenizer.from_folder(folder)
    vocab_size = transformer.vocab_size
    if tokenizer and tokenizer.size > vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.size} ids and config.json a vocabulary of "
            f"{vocab_size}; they belong to different models: copy both again from one checkpoint"
        )
    turn_end = tokenizer.id_of(architecture.turn_end) if tokenizer else None
    ids = _token_ids(folder, config, generation, vocab_size, turn_end)
    if turn_ends is not None:
        ids = replace(ids, turn_ends=turn_ends)
    # This compares tensor names before the model is built, so a wrong number of layers is rejected early.
    weights = file or CheckpointWeights(folder, architecture, transformer)
    if dtype is None:
        dtype = weights.dtype if device.type != "cpu" else _cpu_dtype(weights.dtype, transformer, quantization)
    with torch.device("meta"):
        model = NativeModel(architecture, transformer, ids, tokenizer)
    model.default_max_new_tokens = generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    model.single_turn = generation.single_turn
    if quantization == "int8":  # first, so that each tensor is quantized as it is read
        quantize(model.network, "int8")
    weights.load_into(model.network, device, dtype)
    if quantization == "fp8":
        quantize(model.network, "fp8")
    return model


def _cpu_dtype(stored: torch.dtype, config: TransformerConfig, quantization: str | None) -> torch.dtype:
    """Return the dtype in which a model computes on a CPU by default.

    Models below `LARGE`, such as the embedded ones, give the same answers on every CPU in float32. The activations of
    an int8 model are converted to float32 before they are quantised, so bfloat16 would make it slower.
    """
    is_candidate = stored == torch.bfloat16 and config.num_parameters >= LARGE and quantization is None
    return torch.bfloat16 if is_candidate and _multiplies_in_bfloat16() else torch.float32


def _multiplies_in_bfloat16() -> bool:
    """Return whether the CPU has dot products of bfloat16 (AVX512_BF16, AMX_BF16, or BF16 of ARM)."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _check_toy(**settings: object) -> None:
    """Raise SettingError for a setting that would have no effect on the toy model."""
    for name, value in settings.items():
        if value is not None:
            raise SettingError(
                f"load('toy', {name}={short_repr(value)}) was given; the toy has no weights and computes in "
                f"float64 on the CPU: leave {name} out, or load another model"
            )


def _find_folder(name: str | Path, revision: str | None) -> Path:
    """Return the folder or GGUF file of a model; a model with a hub name is downloaded unless it is in the cache."""
    text, folder = str(name), user_path(name)
    is_gguf = text.endswith(".gguf")
    is_local = (bool(text) and os.path.isdir(folder)) or (is_gguf and os.path.isfile(folder))
    if is_local or text in EMBEDDED:
        if revision is not None:
            raise SettingError(
                f"load({short_repr(text)}, revision={short_repr(revision)}) was given; only hub names have "
                "revisions, and this is a local model: leave revision out"
            )
        return folder if is_local else EMBEDDED_FOLDER / text
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or is_gguf:  # not a hub name
        near = difflib.get_close_matches(text, BUILT_IN, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else f" ({', '.join(BUILT_IN)})"
        raise CheckpointError(
            f"there is no {'file' if is_gguf else 'folder'} {short_repr(text)}, and it is neither a hub name "
            f"(organisation/model) nor a built-in name{hint}; `lastword models` lists known models"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{short_repr(text)} is not a local folder and could not be fetched from the hub "
            f"({error!s:.500}); check the name and the network, or download the folder and give its path"
        ) from error


def _token_ids(
    folder: Path, config: SpecialIds, generation: SpecialIds, vocab_size: int, turn_end: int | None
) -> TokenIds:
    """Return the special ids of config.json, or of generation_config.json where unset, with `turn_end` added."""
    mask = generation.mask_token_id if config.mask_token_id is None else config.mask_token_id
    pad = generation.pad_token_id if config.pad_token_id is None else config.pad_token_id
    ends = config.eos_token_id or generation.eos_token_id
    if mask is None or not ends:
        raise CheckpointError(
            f"{folder} names no {'mask' if mask is None else 'end'} token; add mask_token_id and "
            "eos_token_id to config.json"
        )
    turn_ends = (*ends[1:], *([] if turn_end is None else [turn_end]))
    pad = ends[0] if pad is None else pad
    try:
        return TokenIds(mask=mask, end=ends[0], pad=pad, vocab_size=vocab_size, turn_ends=turn_ends)
    except SettingError as error:
        raise CheckpointError(f"{folder} cannot be decoded with: {error}") from error
