"""Records of `python -m benchmarks.passes`: a line per measurement, and the ceilings of the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from lastword.bench import BenchLine, BenchRecord, Figure, RecordPart, read_record
from lastword.io.schema import Count, Share, Text

# Words of cases in records of earlier versions, and the present ones.
_RENAMED = {
    "in the loop": "decoding loop",
    "prompt kept": "prompt computed once",
    "not captured": "no CUDA graphs",
    "one token a pass": "one token per forward pass",
    " columns over ": " tokens of ",
    " columns": " tokens",
    " rows through ": " prompts in a batch of ",
}


def current_case(case: object) -> object:
    """Return the name of a case in present words.

    >>> current_case("dual, prompt kept, 64 rows through 16 slots")
    'dual, prompt computed once, 64 prompts in a batch of 16'
    """
    if not isinstance(case, str):
        return case
    for old, new in _RENAMED.items():
        case = case.replace(old, new)
    return case.removesuffix(" slots") if " in a batch of " in case else case


class Ceilings(RecordPart):
    """The best that the device reaches: TFLOP/s of a square matrix product, GB/s of a copy."""

    matrix: Count  # width of the product
    tflops: Figure
    gbs: Figure


class PassLine(BenchLine):
    """The figures of a measurement, with its arithmetic, memory traffic and device activity."""

    case: Annotated[Text, BeforeValidator(current_case)]
    tflops: Figure | None = None  # of the minimum arithmetic
    gbs: Figure | None = None  # of the minimum memory traffic
    compute_share: Figure | None = None  # of the ceilings
    memory_share: Figure | None = None
    launches: Figure | None = None  # per forward pass
    kernels: Figure | None = None  # per forward pass
    busy: Share | None = None  # share of the time in which the device worked
    ratio: Figure | None = None  # of the probe to a forward pass of the bare model


class PassRecord(BenchRecord):
    """A run of `python -m benchmarks.passes`, or an older one of `lastword bench`."""

    ceilings: Ceilings | None = None
    lines: Sequence[PassLine]


def read(path: Path) -> PassRecord:
    """Return the record in a file."""
    return read_record(path, PassRecord)
