"""What the device gives at best, measured in the same run: a large matrix product and a copy."""

from __future__ import annotations

import torch

from lastword.bench.meter import Meter
from lastword.bench.record import Ceilings

ON_GPU, ON_CPU = (8192, 2**30), (256, 2**22)  # width of the square matrices, bytes of the copy
AT_ONCE = 4


def ceilings(meter: Meter, dtype: torch.dtype) -> Ceilings:
    """TFLOP/s of a square product and GB/s of a copy, read and written bytes counted."""
    width, size = ON_GPU if meter.device.type == "cuda" else ON_CPU
    left, right = torch.randn(2, width, width, device=meter.device).to(dtype)
    source = torch.empty(size, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)

    def product() -> None:
        for _ in range(AT_ONCE):
            left @ right

    def copy() -> None:
        for _ in range(AT_ONCE):
            target.copy_(source)

    multiplied, copied = meter.median(product), meter.median(copy)
    return Ceilings(
        matrix=width,
        tflops=AT_ONCE * 2 * width**3 / multiplied.ms / 1e9,
        gbs=AT_ONCE * 2 * size / copied.ms / 1e6,
    )
