"""Surroundings: what figures depend on besides model and recipe, as the records say it."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from lastword.models.base import MaskPredictor
from lastword.version import __version__


def surroundings(model: MaskPredictor) -> dict[str, Any]:
    """What a figure depends on besides model and recipe."""
    device = model.device
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what computes answers here."""
    return {
        "lastword": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def dtype_of(model: MaskPredictor) -> str:
    """What the model computes in, and the dtype of its layers' weights where that is another."""
    if isinstance(known := getattr(model, "dtype", None), str):  # its weights are elsewhere
        return known
    found = [p.dtype for p in model.parameters()] if hasattr(model, "parameters") else []
    computes = str(found[0] if found else torch.float32).removeprefix("torch.")
    return f"{computes}, fp8 weights" if torch.float8_e4m3fn in found else computes


def _processor() -> str:
    """The CPU by name where the system tells it, and the threads in use."""
    return f"{_processor_name()}, {torch.get_num_threads()} threads"


@lru_cache(maxsize=1)
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else f"{platform.processor() or platform.machine()} {sys.platform}"
