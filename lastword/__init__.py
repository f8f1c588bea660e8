"""lastword: predict how long a diffusion language model's answer will be before decoding it."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from lastword.version import __version__ as __version__

# The public names are listed once, in __init__.pyi. They are imported on first use, so that `lastword --help`
# does not import torch.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULE_OF = {
    alias.name: statement.module
    for statement in _STUB.body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
_SUBPACKAGES = {"models", "survival", "evaluate"}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(f"lastword.{_MODULE_OF[name]}"), name)
    if name in _SUBPACKAGES:
        return import_module(f"lastword.{name}")
    raise AttributeError(f"module 'lastword' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
