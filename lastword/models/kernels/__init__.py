"""Triton kernels with equivalent PyTorch code: when they are used, and how they are compiled.

Triton is not imported before a tensor on a GPU needs a kernel.
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
    """Return whether kernels compute on this tensor; with TRITON_INTERPRET=1 they do so on a CPU as well."""
    return x.dtype != float64 and ((x.is_cuda and _has_triton()) or INTERPRETED)


@cache
def _has_triton() -> bool:
    """Return whether Triton is installed; torch for Linux and NVIDIA depends on it."""
    return find_spec("triton") is not None


@cache
def compile_kernel(kernel: Callable[..., None]) -> Any:
    """Return a kernel that is launched as `compile_kernel(kernel)[grid](...)`; `tl` is Triton's language."""
    import triton
    import triton.language as tl

    plain = unwrap(kernel)  # tests wrap functions to check the types of their arguments
    plain.__globals__["tl"] = tl
    return triton.jit(plain)


@cache
def has_float8(device: device) -> bool:
    """Return whether a device can multiply in fp8; NVIDIA's can since compute capability 8.9."""
    if device.type != "cuda":
        return INTERPRETED
    return cuda.get_device_capability(device) >= (8, 9)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number; blocks of Triton have such lengths."""
    return 1 << (number - 1).bit_length()
