"""Known models: those in the package, and published checkpoints with the state of their files in the hub's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lastword.embedded import EMBEDDED, FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS
from lastword.models.config import GenerationConfig
from lastword.models.load import read_config
from lastword.models.tokenizer import read_chat_template
from lastword.models.toy import Toy
from lastword.models.weights import tensor_files

BYTES_PER_PARAMETER = 2  # published checkpoints are stored in bf16


@dataclass(frozen=True)
class KnownModel:
    """The properties of a known model that can be read without loading it."""

    name: str
    family: str
    source: Literal["embedded", "hub"]
    parameters: int  # rounded to two digits if the checkpoint is not on this machine
    max_seq_len: int | None = None
    default_max_new_tokens: int | None = None  # None: the files are not on this machine
    chat: bool = False  # has a chat template; before a download, judged by the name
    local: Literal["complete", "partial", "no"] = "no"
    local_bytes: int = 0
    error: str | None = None  # why the local files cannot be read

    @property
    def download_bytes(self) -> int:
        """The approximate size of the download; 0 if this machine has any file of the checkpoint."""
        return self.parameters * BYTES_PER_PARAMETER if self.local == "no" else 0


def _on_hub(name: str, family: str, parameters: float, max_seq_len: int) -> KnownModel:
    return KnownModel(name, family, "hub", int(parameters), max_seq_len, chat="Base" not in name)


PUBLISHED = (
    _on_hub("GSAI-ML/LLaDA-8B-Base", "LLaDA", 8.0e9, 4096),
    _on_hub("GSAI-ML/LLaDA-8B-Instruct", "LLaDA", 8.0e9, 4096),
    _on_hub("GSAI-ML/LLaDA-1.5", "LLaDA", 8.0e9, 4096),
    _on_hub("Dream-org/Dream-v0-Base-7B", "Dream", 7.6e9, 131072),
    _on_hub("Dream-org/Dream-v0-Instruct-7B", "Dream", 7.6e9, 131072),
    _on_hub("Dream-org/Dream-Coder-v0-Base-7B", "Dream", 7.6e9, 131072),
    _on_hub("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream", 7.6e9, 131072),
)


def known_models() -> Iterator[KnownModel]:
    """Yield the embedded models, the toy and the published checkpoints, without fetching or loading any."""
    from huggingface_hub import constants

    for name in EMBEDDED:
        folder = EMBEDDED_FOLDER / name
        yield _read_folder(KnownModel(name, "", "embedded", 0), folder, _folder_bytes(folder))
    toy = Toy()
    yield KnownModel("toy", "toy", "embedded", 0, toy.max_seq_len, toy.default_max_new_tokens, local="complete")
    for model in PUBLISHED:
        yield _read_cache(model, Path(constants.HF_HUB_CACHE))


def _read_cache(model: KnownModel, cache: Path) -> KnownModel:
    """Return a published model, updated with the state of its files in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    repository = cache / f"models--{model.name.replace('/', '--')}"
    try:
        if not repository.is_dir():
            return model
        config = try_to_load_from_cache(model.name, "config.json", cache_dir=cache)
    except OSError as error:
        return replace(model, local="partial", error=f"the cache cannot be read ({error})")
    size = _folder_bytes(repository / "blobs")
    if not isinstance(config, str):  # config.json is not downloaded yet
        return replace(model, local="partial", local_bytes=size)
    return _read_folder(model, Path(config).parent, size)


def _read_folder(model: KnownModel, folder: Path, size: int) -> KnownModel:
    """Return a model, updated with the properties read from its folder or with the error of reading them."""
    try:
        architecture, _, config = read_config(folder)
        max_new_tokens = GenerationConfig.of_folder(folder).max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        complete = all(map(os.path.isfile, set(tensor_files(folder).values())))
        return replace(
            model,
            family=architecture.name,
            parameters=config.num_parameters,
            max_seq_len=config.max_seq_len,
            default_max_new_tokens=max_new_tokens,
            chat=read_chat_template(folder) is not None,
            local="complete" if complete else "partial",
            local_bytes=size,
        )
    except (CheckpointError, OSError) as error:
        return replace(model, local="partial", local_bytes=size, error=str(error))


def _folder_bytes(folder: Path) -> int:
    """Return the total size in bytes of the files directly in a folder; 0 if the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0
