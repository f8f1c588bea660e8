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
    from lastword.canvas import *
    from lastword.commit import *
    from lastword.decoding import *
    from lastword.errors import *
    from lastword.generation import *
    from lastword.length import *
    from lastword.models import *
    from lastword.passes import *
    from lastword.recipe import *
    from lastword.survival import *
    from lastword.unmask import *

# Where public names live: all that a folder exports, or some of a file. They are imported on first use,
# so that `lastword --help` does not wait for torch.
_HOMES = {
    "cache": "*",
    "calibration": "*",
    "calibration.learn": "calibrate",
    "canvas": "TokenIds",
    "commit": "*",
    "decoding": "Step decode",
    "errors": "LastwordError",
    "generation": "Finish Generation generate predict_length",
    "length": "*",
    "models": "*",
    "passes": "*",
    "recipe": "*",
    "survival": "*",
    "unmask": "*",
}


def _public(home: str) -> list[str]:
    """What a home gives to `lastword` itself; a folder gives its classes and functions."""
    if _HOMES[home] != "*":
        return _HOMES[home].split()
    exported = vars(import_module(f"lastword.{home}")).items()
    return [name for name, value in exported if callable(value) and not name.startswith("_")]


def __getattr__(name: str) -> object:
    if name == "__all__":
        return sorted({name for home in _HOMES for name in _public(home)} | {"__version__"})
    if not name.startswith("_"):
        for home in _HOMES:
            if name == home and _HOMES[home] == "*":
                return import_module(f"lastword.{home}")
            if name in _public(home):
                return getattr(import_module(f"lastword.{home}"), name)
    raise AttributeError(f"module 'lastword' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __getattr__("__all__")  # type: ignore[return-value]
