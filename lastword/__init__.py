"""lastword: know how long a diffusion language model's answer will be before it writes it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lastword.version import __version__ as __version__

if TYPE_CHECKING:
    from lastword import models as models
    from lastword import survival as survival
    from lastword.cache import *
    from lastword.calibration import *
    from lastword.calibration.learn import *
    from lastword.canvas.ids import TokenIds as TokenIds
    from lastword.commit import *
    from lastword.decoding import *
    from lastword.errors import LastwordError as LastwordError
    from lastword.generation import *
    from lastword.length import *
    from lastword.models import *
    from lastword.passes import *
    from lastword.recipe import *
    from lastword.replay.frames import Frame as Frame
    from lastword.replay.watch import *
    from lastword.survival import *
    from lastword.unmask import *

# Where public names live: what a file lists in `__all__`, what a folder exports, or one name of ours. They
# are imported on first use, so that `lastword --help` does not wait for torch.
_FILES = ("decoding", "generation", "calibration.learn", "replay.watch")
_FOLDERS = (
    "cache", "calibration", "commit", "length", "models", "passes", "recipe", "survival", "unmask",
)  # fmt: skip
_SINGLE = {"canvas.ids": "TokenIds", "errors": "LastwordError", "replay.frames": "Frame"}


def _public(home: str) -> list[str]:
    """What a home gives to `lastword` itself."""
    if home in _SINGLE:
        return [_SINGLE[home]]
    module = import_module(f"lastword.{home}")
    if home in _FILES:
        return list(module.__all__)
    return [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]


def __getattr__(name: str) -> object:
    homes = (*_SINGLE, *_FILES, *_FOLDERS)
    if name == "__all__":
        return sorted({name for home in homes for name in _public(home)} | {"__version__"})
    if name in _FOLDERS:
        return import_module(f"lastword.{name}")
    for home in homes if name[0] != "_" else ():
        if name in _public(home):
            return getattr(import_module(f"lastword.{home}"), name)
    raise AttributeError(f"module 'lastword' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __getattr__("__all__")  # type: ignore[return-value]
