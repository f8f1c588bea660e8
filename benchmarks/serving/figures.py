"""Figures of a run: latencies, useful tokens, and how well a probe told the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import correlation, fmean, quantiles
from typing import Literal

from benchmarks.serving.clients import ClientReply
from lastword.bench import Figure, RecordPart, Setting
from lastword.errors import SettingError
from lastword.io.schema import Count, Share, Text, read_json_object, validate

ROUTING = "routing"  # the record of `python -m benchmarks.serving.routing`


class Correlation(RecordPart):
    """R2 of predicted lengths against passes and seconds, for the requests of a recipe."""

    requests: Count
    passes: Share | None  # None: all took as many
    seconds: Share | None


class Line(RecordPart):
    """The figures of an arm."""

    arm: Text
    requests: Count
    seconds: Figure  # the whole run
    mean: Figure  # seconds of a request, from asking to its end
    p50: Figure
    p95: Figure
    p99: Figure
    first_p50: Figure  # seconds to the first committed text
    first_p95: Figure
    tokens: Count  # of answers
    tokens_per_second: Figure
    passes: Count | None  # of the engine, whatever their rows
    columns: Figure | None  # that they computed, padding included
    useful: Share | None  # of them: of a row, no padding
    rows: Figure | None  # of a pass, on average
    checked: Count  # answers that were decoded alone as well
    equal: Count  # of them
    resident_200: Figure | None = None  # MB after the 200th answer, or the fifth of all
    resident_end: Figure | None = None
    told: dict[Text, Correlation]


class Record(RecordPart):
    """A run of `python -m benchmarks.serving`."""

    kind: Literal["serving"] = "serving"
    model: Text
    hardware: Text
    dtype: Text
    versions: dict[Text, Text]
    settings: dict[Text, Setting]
    notes: list[Text]
    lines: list[Line]

    def to_json(self) -> str:
        """As a file holds it: a line is a line."""
        data = json.loads(self.model_dump_json(), parse_float=lambda own: float(f"{float(own):.5g}"))
        lines = ",\n  ".join(json.dumps(line) for line in data.pop("lines"))
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


def read(path: Path) -> Record:
    """The record of a file."""
    try:
        return validate(Record, read_json_object(path))
    except (OSError, ValueError) as wrong:
        raise SettingError(f"{path} is no record of benchmarks.serving ({wrong})") from wrong


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, interpolated between values."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def r_squared(predicted: Sequence[float], came: Sequence[float]) -> float | None:
    """Return R2 of the best line through the points, or None if either is constant."""
    if min(len({*predicted}), len({*came})) < 2:
        return None
    return min(1.0, correlation(predicted, came) ** 2)


def told(heard: Sequence[ClientReply]) -> dict[str, Correlation]:
    """By recipe."""
    found = {}
    for name in sorted({reply.asked.recipe for reply in heard}):
        mine = [reply for reply in heard if reply.asked.recipe == name and reply.predicted is not None]
        predicted = [reply.predicted or 0.0 for reply in mine]
        found[name] = Correlation(
            requests=len(mine),
            passes=r_squared(predicted, [float(reply.passes) for reply in mine]),
            seconds=r_squared(predicted, [reply.decoding for reply in mine]),
        )
    return found


def line_of(
    arm: str,
    heard: Sequence[ClientReply],
    seconds: float,
    work: dict[str, float],
    checked: tuple[int, int],
    resident: tuple[int, int] | None = None,
) -> Line:
    """The figures of one arm; `work` is what the engine counted."""
    times = [reply.seconds for reply in heard]
    firsts = [reply.seconds if reply.first is None else reply.first for reply in heard]
    tokens, computed = sum(reply.tokens for reply in heard), work.get("computed", 0.0)
    passes = round(work.get("passes", 0))
    return Line(
        arm=arm,
        requests=len(heard),
        seconds=seconds,
        mean=fmean(times),
        p50=percentile(times, 0.5),
        p95=percentile(times, 0.95),
        p99=percentile(times, 0.99),
        first_p50=percentile(firsts, 0.5),
        first_p95=percentile(firsts, 0.95),
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        passes=passes or None,
        columns=computed or None,
        useful=min(1.0, work["columns"] / computed) if computed else None,
        rows=work["rows"] / passes if passes else None,
        checked=checked[0],
        equal=checked[1],
        resident_200=None if resident is None else resident[0] / 2**20,
        resident_end=None if resident is None else resident[1] / 2**20,
        told=told(heard),
    )


def table(record: Record) -> str:
    """The arms beside one another, and what a probe told, as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    base = next((line for line in record.lines if line.arm == "predicted"), record.lines[0])
    parts = [
        f"{record.model}: {record.hardware}, {record.dtype}, {versions}. {' '.join(record.notes)}",
        "| arm | requests | mean, s | p50 | p95 | p99 | first text, p50 | useful tokens/s | ours | passes "
        "| rows a pass | columns |\n|---|" + "---:|" * 11,
    ]
    for line in record.lines:
        counts = ["-" if n is None else f"{n:,.{d}f}" for n, d in ((line.passes, 0), (line.rows, 1), (line.columns, 0))]
        parts[-1] += (
            f"\n| {line.arm} | {line.requests} | {line.mean:.3g} | {line.p50:.3g} | {line.p95:.3g} "
            f"| {line.p99:.3g} | {line.first_p50:.3g} | {line.tokens_per_second:,.0f} "
            f"| {base.tokens_per_second / line.tokens_per_second:.2f}x | {' | '.join(counts)} |"
        )
    parts.append("| recipe | requests | R2 against passes | against seconds |\n|---|---:|---:|---:|")
    for name, found in base.told.items():
        cells = ["-" if one is None else f"{one:.2f}" for one in (found.passes, found.seconds)]
        parts[-1] += f"\n| {name} | {found.requests} | {' | '.join(cells)} |"
    return "\n\n".join(parts)


def routing_table(record: Record) -> str:
    """Ways to route beside one another, and what the record says of itself."""
    rows = [
        f"| {line.arm} | {line.requests} | {line.mean:.3g} | {line.p50:.3g} | {line.p95:.3g} | {line.p99:.3g} |"
        for line in record.lines
    ]
    head = "| routing | requests | mean, s | p50 | p95 | p99 |\n|---|" + "---:|" * 5
    return "\n".join([head, *rows]) + f"\n\n{record.model}, {record.hardware}. {' '.join(record.notes)}"


def tables(folder: Path) -> str:
    """Every run of arms that is kept."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.stem != ROUTING]
    runs = {path.stem: read(path) for path in paths}
    return "\n\n".join(f"**{name}.** {table(run)}" for name, run in runs.items())
