"""Triton kernels, compiled on first use: nothing is imported before a tensor on a GPU asks for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import unwrap
from typing import Any

from torch import Tensor, cuda, device, float64


def compiles(x: Tensor) -> bool:
    """Is it a kernel's turn? `TRITON_INTERPRET=1`, Triton's own switch, runs them on a CPU as well."""
    return x.dtype != float64 and ((x.is_cuda and has_triton()) or _interprets())


@cache
def has_triton() -> bool:
    """Torch for Linux and NVIDIA brings it along; others may not."""
    return find_spec("triton") is not None


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def compiled(kernel: Callable[..., None]) -> Any:
    """A kernel to be launched: `compiled(kernel)[grid](...)`. Kernels find Triton's language as `tl`."""
    import triton
    import triton.language as tl

    plain = unwrap(kernel)  # tests wrap what they import to check its types
    plain.__globals__["tl"] = tl
    return triton.jit(plain)


@cache
def has_float8(where: device) -> bool:
    """Can the device multiply in fp8? NVIDIA's can since compute capability 8.9."""
    if where.type != "cuda":
        return _interprets()
    return cuda.get_device_capability(where) >= (8, 9)


def power_of_two(number: int) -> int:
    """The smallest one that is not below the number: the lengths Triton's blocks have."""
    return 1 << (number - 1).bit_length()
