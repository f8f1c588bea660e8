"""The record of a run of `python -m benchmarks.scale`."""

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


class TrafficSummary(RecordPart):
    """The requests of one traffic and the capacity of a replica."""

    scales: list[Count]
    tokens: Figure  # mean per answer
    r2: Share  # of predicted and true seconds of work
    capacity: dict[Text, Figure]  # requests per second of a replica, by canvas
    probe_ms: Figure
    probe_share: Share  # of the time of a fully loaded replica
    probe_bound: Count  # tokens; shorter answers take less time than their probe
    target: Figure  # p95 in seconds for which replicas are counted
    rate: Figure  # requests per second for which replicas are counted


class Line(RecordPart):
    """An arm at a rate; percentiles are None if the rate exceeds its capacity."""

    traffic: Text
    arm: Text
    p50: Figure | None
    p95: Figure | None
    p99: Figure | None
    tokens_per_second: Figure
    replicas: Count | None  # that meet the target; None if no number does
    replicas_p95: Figure | None  # with that number and all requests


class Curve(RecordPart):
    """The p95 of an arm by load."""

    traffic: Text
    arm: Text
    p95: list[Figure]


class Stale(RecordPart):
    """Routing by least predicted work with reports of a given age."""

    traffic: Text
    every: Figure
    alone: Figure  # p95 with reports only
    counting: Figure  # p95 if the router adds the requests sent since the report


class SmallFleet(RecordPart):
    """The p95 with the least predicted work of two replicas, relative to the fewest requests of two."""

    traffic: Text
    replicas: Count
    change: Change  # mean of several seeds


class Record(RecordPart):
    """The results of a run."""

    kind: Literal["scale"] = "scale"
    settings: dict[Text, Setting]
    sources: list[Text]
    pass_ms: Figure  # fixed
    token_us: Figure
    errors: dict[Text, Change]  # of the fit, by line of the bench record
    traffic: dict[Text, TrafficSummary]
    lines: list[Line]
    loads: list[Figure]
    curves: list[Curve]
    stale: list[Stale]
    small_fleets: list[SmallFleet]
    useful_probe: dict[Text, list[Count] | None]  # by max_tokens: lengths for which a probe saves time
    decision_us: Figure  # of a routing decision, measured in this process

    def swept(self, traffic: str, arm: str) -> float:
        """Return the p95 of a sweep at the load at which arms are compared."""
        (curve,) = (curve for curve in self.curves if (curve.traffic, curve.arm) == (traffic, arm))
        return curve.p95[[f"{load:g}" for load in self.loads].index(f"{self.settings['load']:g}")]

    def to_json(self) -> str:
        """Return the record as JSON with one text line per entry."""
        data = json.loads(self.model_dump_json(), parse_float=lambda number: float(f"{float(number):.4g}"))
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
    """Return the record in a file."""
    try:
        return validate(Record, read_json_object(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} is not a record of benchmarks.scale ({error})") from error
