"""Record of a run: the machine, the settings, the ceilings, and a line per thing measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lastword.errors import SettingError
from lastword.io.schema import CHECKED, Count, Share, Text, read_object, validate

Figure = Annotated[float, Field(ge=0, le=1e15)]
Setting = bool | Annotated[int, Field(ge=0, le=10**9)] | Figure | Text | list[Count]
DIGITS = 6


class Kept(BaseModel):
    """A part of a record: checked when it is made and when it is read."""

    model_config = ConfigDict(**CHECKED, frozen=True)


class Ceilings(Kept):
    """What the device gives at best: TFLOP/s of a square product, GB/s of a copy."""

    matrix: Count  # width of the product
    tflops: Figure
    gbs: Figure


class Line(Kept):
    """One thing measured. What does not apply, or could not be measured on this device, is None."""

    line: Text  # as --lines names it
    case: Text
    rows: Count = 1
    runs: Count = 0  # that were timed, after the warm-up
    ms: Figure | None = None  # of one pass, the median
    seconds: Figure | None = None  # of a whole answer or batch, the median
    first_seconds: Figure | None = None  # of the run that warmed up: kernels compiled, graphs captured
    passes: Count | None = None  # that ran
    tokens: Count | None = None  # useful ones: each stands before its row's end
    columns: Figure | None = None  # computed; of one pass where `ms` is of one
    tflops: Figure | None = None  # by the least arithmetic
    gbs: Figure | None = None  # by the least traffic
    compute_share: Figure | None = None  # of the ceilings
    memory_share: Figure | None = None
    launches: Figure | None = None  # a pass
    kernels: Figure | None = None  # a pass
    busy: Share | None = None  # of the time, the device's
    peak_mb: Figure | None = None  # beyond what was held before the line began
    tokens_per_second: Figure | None = None
    tokens_per_forward: Figure | None = None
    useful_columns: Share | None = None  # of those computed: of an unfinished row, and no padding
    ratio: Figure | None = None  # of the probe to a bare pass
    occupancy: Share | None = None  # of the slots, as long as prompts waited
    solo: Count | None = None  # rows that were decoded alone as well
    solo_equal: Count | None = None  # those of them that came out the same


class Record(Kept):
    """A run of `lastword bench`."""

    kind: Literal["bench"] = "bench"
    shape: Text
    hardware: Text
    dtype: Text
    weights: Text
    versions: dict[Text, Text]
    warm_up: Count
    repeats: Count
    settings: dict[Text, Setting]
    notes: list[Text]
    seconds: Figure | None  # the whole run took
    ceilings: Ceilings | None
    lines: list[Line]

    def to_json(self) -> str:
        """The record as a file holds it: a line is a line."""
        data = _rounded(self.model_dump())
        lines = ",\n  ".join(
            json.dumps({name: value for name, value in line.items() if value is not None})
            for line in data.pop("lines")
        )
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


def read(path: Path) -> Record:
    """The record of a file."""
    try:
        return validate(Record, read_object(path))
    except (OSError, ValueError) as wrong:
        raise SettingError(
            f"{path} is no record of lastword bench ({wrong}); make one with lastword bench --out {path}"
        ) from wrong


def _rounded(value: Any) -> Any:
    """A few digits: more are noise."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
