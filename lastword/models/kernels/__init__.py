"""Triton kernels, each with equivalent PyTorch code. This module selects between them and compiles kernels.

Triton is imported when the first kernel is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import unwrap
from typing import Any

from torch import Tensor, cuda, device, float64

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def uses_triton(x: Tensor) -> bool:
    """Return whether Triton kernels are used: on a GPU or with TRITON_INTERPRET=1, for all dtypes except float64."""
    return x.dtype != float64 and ((x.is_cuda and _has_triton()) or INTERPRETED)


@cache
def _has_triton() -> bool:
    """Return whether Triton is installed; torch for NVIDIA GPUs on Linux depends on it."""
    return find_spec("triton") is not None


@cache
def compile_kernel(kernel: Callable[..., None]) -> Any:
    """Return the compiled kernel, launched as `compile_kernel(kernel)[grid](...)`; set `tl` in its module."""
    import triton
    import triton.language as tl

    plain = unwrap(kernel)  # tests wrap functions to check the types of their arguments
    plain.__globals__["tl"] = tl
    return triton.jit(plain)


@cache
def has_float8(device: device) -> bool:
    """Return whether a device can multiply in fp8: NVIDIA GPUs of compute capability 8.9 and above."""
    if device.type != "cuda":
        return INTERPRETED
    return cuda.get_device_capability(device) >= (8, 9)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`; Triton requires such block lengths."""
    return 1 << (number - 1).bit_length()
