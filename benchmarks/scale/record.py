"""Record of a run of `python -m benchmarks.scale`, small enough to be kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lastword.bench import Figure, RecordPart, Setting
from lastword.errors import SettingError
from lastword.io.schema import Count, Share, Text, read_json_object, validate

FILE = Path(__file__).parent.parent / "records" / "scale.json"
Change = Annotated[float, Field(ge=-1, le=1e6)]


class Come(RecordPart):
    """Requests of one traffic: what is known of them, and what a replica can do."""

    scales: list[Count]
    tokens: Figure  # of an answer, mean
    r2: Share  # predicted against true seconds of work
    capacity: dict[Text, Figure]  # requests a second of a replica, by canvas
    probe_ms: Figure
    probe_share: Share  # of a replica that does all it can
    probe_bound: Count  # tokens; shorter answers take less time than their probe
    target: Figure  # seconds of p95 that machines are counted for
    rate: Figure  # requests a second that they are counted for


class Line(RecordPart):
    """An arm at a rate; percentiles are None where the rate exceeds its capacity."""

    traffic: Text
    arm: Text
    p50: Figure | None
    p95: Figure | None
    p99: Figure | None
    tokens_per_second: Figure
    machines: Count | None  # that meet the target; None: none do
    machines_p95: Figure | None  # of so many, with all requests


class Curve(RecordPart):
    """The p95 of one arm by load."""

    traffic: Text
    arm: Text
    p95: list[Figure]


class Stale(RecordPart):
    """The arm of least predicted work with reports of a given age."""

    traffic: Text
    every: Figure
    alone: Figure  # p95 by reports alone
    counting: Figure  # p95 where the router adds what it has sent since


class Record(RecordPart):
    """A run."""

    kind: Literal["scale"] = "scale"
    settings: dict[Text, Setting]
    sources: list[Text]
    pass_ms: Figure  # fixed
    column_us: Figure
    errors: dict[Text, Change]  # of the two, by line of the bench
    traffic: dict[Text, Come]
    lines: list[Line]
    loads: list[Figure]
    curves: list[Curve]
    stale: list[Stale]
    pays: dict[Text, list[Count] | None]  # by max_tokens: lengths for which a probe pays
    decision_us: Figure  # measured in this process: another machine has another

    def swept(self, traffic: str, arm: str) -> float:
        """The p95 of a sweep at the load at which arms are compared."""
        (curve,) = (own for own in self.curves if (own.traffic, own.arm) == (traffic, arm))
        return curve.p95[[f"{load:g}" for load in self.loads].index(f"{self.settings['load']:g}")]

    def to_json(self) -> str:
        """As a file holds it: a line is a line."""
        data = json.loads(self.model_dump_json(), parse_float=lambda own: float(f"{float(own):.4g}"))
        parts = []
        for name, value in data.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                inner = ",\n  ".join(json.dumps(line) for line in value)
                parts.append(f'"{name}": [\n  {inner}\n ]')
            elif isinstance(value, dict):
                inner = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
                parts.append(f'"{name}": {{\n  {inner}\n }}')
            else:
                parts.append(f'"{name}": {json.dumps(value)}')
        return "{\n " + ",\n ".join(parts) + "\n}\n"


def read(path: Path = FILE) -> Record:
    """The record of a file."""
    try:
        return validate(Record, read_json_object(path))
    except (OSError, ValueError) as wrong:
        raise SettingError(f"{path} is no record of benchmarks.scale ({wrong})") from wrong
