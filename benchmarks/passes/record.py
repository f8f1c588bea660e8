"""Records of `python -m benchmarks.passes`: a line per measurement, and the ceilings of the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastword.bench import BenchLine, BenchRecord, Figure, RecordPart, read_record
from lastword.io.schema import Count, Share


class Ceilings(RecordPart):
    """The best that the device reaches: TFLOP/s of a square matrix product, GB/s of a copy."""

    matrix: Count  # width of the product
    tflops: Figure
    gbs: Figure


class PassLine(BenchLine):
    """The figures of a measurement, with its arithmetic, memory traffic and device activity."""

    tflops: Figure | None = None  # by the least arithmetic
    gbs: Figure | None = None  # by the least traffic
    compute_share: Figure | None = None  # of the ceilings
    memory_share: Figure | None = None
    launches: Figure | None = None  # per forward pass
    kernels: Figure | None = None  # per forward pass
    busy: Share | None = None  # share of the time in which the device worked
    ratio: Figure | None = None  # of the probe to a bare pass


class PassRecord(BenchRecord):
    """A run of `python -m benchmarks.passes`, or an older one of `lastword bench`."""

    ceilings: Ceilings | None = None
    lines: Sequence[PassLine]


def read(path: Path) -> PassRecord:
    """Return the record in a file."""
    return read_record(path, PassRecord)
