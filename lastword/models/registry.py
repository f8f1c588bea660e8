"""Known checkpoints: embedded, published and cached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lastword.embedded import EMBEDDED
from lastword.embedded import FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError
from lastword.models.base import DEFAULT_MAX_NEW_TOKENS
from lastword.models.config import GenerationConfig
from lastword.models.load import described
from lastword.models.path_safety import is_plain_file
from lastword.models.tokenizer import chat_template_of
from lastword.models.toy import Toy
from lastword.models.weights import tensor_files

BYTES = 2  # of a published parameter
CONFIG, GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True)
class KnownModel:
    """A model that `load` takes by its name, as far as is known without loading it."""

    name: str
    family: str
    home: Literal["embedded", "hub"]
    parameters: int  # of a checkpoint that is not here, to two digits
    max_seq_len: int | None = None
    default_max_new_tokens: int | None = (
        None  # the canvas it is made for; None: its files say so, and are not here
    )
    chat: bool = False  # has a chat template, or is made for one
    here: Literal["whole", "part", "no"] = "no"
    size: int = 0  # bytes on this machine
    wrong: str | None = None  # why what is here cannot be read

    @property
    def to_fetch(self) -> int:
        """Bytes that `load` would fetch of a checkpoint that is not here, about."""
        return self.parameters * BYTES if self.here == "no" else 0


def _hub(name: str, family: str, parameters: float, positions: int) -> KnownModel:
    chat = "Instruct" in name or name.endswith("LLaDA-1.5")
    return KnownModel(name, family, "hub", int(parameters), positions, chat=chat)


PUBLISHED = (
    _hub("GSAI-ML/LLaDA-8B-Base", "LLaDA", 8.0e9, 4096),
    _hub("GSAI-ML/LLaDA-8B-Instruct", "LLaDA", 8.0e9, 4096),
    _hub("GSAI-ML/LLaDA-1.5", "LLaDA", 8.0e9, 4096),
    _hub("Dream-org/Dream-v0-Base-7B", "Dream", 7.6e9, 131072),
    _hub("Dream-org/Dream-v0-Instruct-7B", "Dream", 7.6e9, 131072),
    _hub("Dream-org/Dream-Coder-v0-Base-7B", "Dream", 7.6e9, 131072),
    _hub("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream", 7.6e9, 131072),
)


def known_models(cache: Path | None = None) -> Iterator[KnownModel]:
    """Every model that goes by a name; `cache` is the hub's folder, its own where none is given.

    Nothing is fetched and nothing is loaded. What of a cache cannot be read is told in `wrong`.
    """
    for name in EMBEDDED:
        folder = EMBEDDED_FOLDER / name
        yield _of_folder(KnownModel(name, "", "embedded", 0), folder, _size(folder))
    yield KnownModel("toy", "toy", "embedded", 0, Toy.max_seq_len, Toy.default_max_new_tokens, here="whole")
    for published in PUBLISHED:
        yield _cached(published, _hub_folder(cache))


def _hub_folder(cache: Path | None) -> Path:
    if cache is not None:
        return cache
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _cached(known: KnownModel, cache: Path) -> KnownModel:
    """A published model with what the hub's cache has of it."""
    from huggingface_hub import try_to_load_from_cache

    repository = cache / f"models--{known.name.replace('/', '--')}"
    try:
        if not repository.is_dir():
            return known
        config = try_to_load_from_cache(known.name, CONFIG, cache_dir=cache)
    except OSError as refused:
        return replace(known, here="part", wrong=f"the cache cannot be read ({refused})")
    size = _size(repository / "blobs")
    if not isinstance(config, str):  # begun, and its config is not there yet
        return replace(known, here="part", size=size)
    return _of_folder(known, Path(config).parent, size)


def _of_folder(known: KnownModel, folder: Path, size: int) -> KnownModel:
    """What a folder's own files say; of one that cannot be read, why."""
    try:
        architecture, _, shape = described(folder)
        generation = GenerationConfig()
        if is_plain_file(folder / GENERATION):
            generation = GenerationConfig.read(folder / GENERATION)
        whole = all(map(os.path.isfile, set(tensor_files(folder).values())))
        return replace(
            known,
            family=architecture.__name__,
            parameters=shape.parameters,
            max_seq_len=shape.max_seq_len,
            default_max_new_tokens=generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS,
            chat=chat_template_of(folder) is not None,
            here="whole" if whole else "part",
            size=size,
        )
    except (CheckpointError, OSError) as broken:
        return replace(known, here="part", size=size, wrong=str(broken))


def _size(folder: Path) -> int:
    """Bytes of the files in a folder; what cannot be looked at counts nothing."""
    try:
        with os.scandir(folder) as found:
            return sum(entry.stat().st_size for entry in found if entry.is_file())
    except OSError:
        return 0
