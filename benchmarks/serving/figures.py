"""The results of a run: latencies, useful tokens per second, and the correlation of predicted and true work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import correlation, fmean, quantiles
from typing import Any, Literal

from pydantic import AliasChoices, Field

from benchmarks.serving.clients import ClientReply
from lastword.bench import Figure, RecordPart, Setting
from lastword.errors import SettingError
from lastword.io.schema import Count, Share, Text, read_json_object, validate

DEADLINES = "deadlines"  # the record of arms with a timeout
DEADLINES_EMBEDDED = "deadlines-embedded"  # the same with an embedded model and the default limits
LENGTH_CLIENTS = "lengths"  # the record of `python -m benchmarks.serving.lengths`
OTHER_TABLES = (DEADLINES, DEADLINES_EMBEDDED, LENGTH_CLIENTS)  # records that have a table of their own


def _renamed(new: str, old: str) -> Any:
    """Return a required field whose name is `old` in older records."""
    return Field(validation_alias=AliasChoices(new, old))


class Correlation(RecordPart):
    """R2 of predicted lengths with forward passes and with seconds, for the requests of a recipe."""

    requests: Count
    forward_passes: Share | None = _renamed("forward_passes", "passes")  # None: all requests took equally many
    seconds: Share | None


class Line(RecordPart):
    """The results of an arm."""

    arm: Text
    requests: Count
    seconds: Figure  # of the whole run
    mean: Figure  # seconds of a request, from its start to its end
    p50: Figure
    p95: Figure
    p99: Figure
    first_p50: Figure  # seconds to the first committed text
    first_p95: Figure
    tokens: Count  # of all answers
    tokens_per_second: Figure
    forward_passes: Count | None = _renamed("forward_passes", "passes")  # of the engine
    tokens_computed: Figure | None = _renamed("tokens_computed", "columns")  # padding included
    useful_share: Share | None = _renamed("useful_share", "useful")  # of the computed tokens: without padding
    rows_per_pass: Figure | None = _renamed("rows_per_pass", "rows")  # mean
    checked: Count  # answers that were also decoded alone
    equal: Count  # the number of `checked` with the same answer
    resident_200: Figure | None = None  # MB after a fifth of the answers
    resident_end: Figure | None = None
    correlations: dict[Text, Correlation] = _renamed("correlations", "told")  # by recipe
    maximum: Figure | None = None  # seconds of a request; older records do not have it
    expired: Count | None = None  # requests that were not answered before their deadline
    probes_per_second: Figure | None = None  # of clients that repeat length probes


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
        """Return the record as JSON with one text line per arm."""
        data = json.loads(self.model_dump_json(), parse_float=lambda number: float(f"{float(number):.5g}"))
        lines = ",\n  ".join(json.dumps(line) for line in data.pop("lines"))
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


def read(path: Path) -> Record:
    """Return the record in a file."""
    try:
        return validate(Record, read_json_object(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} is not a record of benchmarks.serving ({error})") from error


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, interpolated between values."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def r_squared(predicted: Sequence[float], true: Sequence[float]) -> float | None:
    """Return R2 of the best line through the points, or None if one coordinate is constant."""
    if min(len({*predicted}), len({*true})) < 2:
        return None
    return min(1.0, correlation(predicted, true) ** 2)


def correlations(replies: Sequence[ClientReply]) -> dict[str, Correlation]:
    """Return the correlations of each recipe."""
    results = {}
    for name in sorted({reply.request.recipe for reply in replies}):
        of_recipe = [reply for reply in replies if reply.request.recipe == name and reply.predicted is not None]
        predicted = [reply.predicted or 0.0 for reply in of_recipe]
        results[name] = Correlation(
            requests=len(of_recipe),
            forward_passes=r_squared(predicted, [float(reply.forward_passes) for reply in of_recipe]),
            seconds=r_squared(predicted, [reply.decoding for reply in of_recipe]),
        )
    return results


def line_of(
    arm: str,
    replies: Sequence[ClientReply],
    seconds: float,
    counts: Mapping[str, float],
    checked: tuple[int, int],
    resident: tuple[int, int] | None = None,
) -> Line:
    """Return the results of one arm; `counts` contains the counters of the engine."""
    latencies = [reply.seconds for reply in replies]
    firsts = [reply.seconds if reply.first is None else reply.first for reply in replies]
    tokens, computed = sum(reply.tokens for reply in replies), counts.get("tokens_with_padding", 0.0)
    passes = round(counts.get("forward_passes", 0))
    return Line(
        arm=arm,
        requests=len(replies),
        seconds=seconds,
        mean=fmean(latencies),
        p50=percentile(latencies, 0.5),
        p95=percentile(latencies, 0.95),
        p99=percentile(latencies, 0.99),
        first_p50=percentile(firsts, 0.5),
        first_p95=percentile(firsts, 0.95),
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        forward_passes=passes or None,
        tokens_computed=computed or None,
        useful_share=min(1.0, counts["tokens"] / computed) if computed else None,
        rows_per_pass=counts["row_passes"] / passes if passes else None,
        checked=checked[0],
        equal=checked[1],
        resident_200=None if resident is None else resident[0] / 2**20,
        resident_end=None if resident is None else resident[1] / 2**20,
        correlations=correlations(replies),
        maximum=max(latencies),
        expired=sum(reply.expired for reply in replies),
    )


def table(record: Record) -> str:
    """Return all results of a record as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    parts = [
        f"{record.model}: {record.hardware}, {record.dtype}, {versions}. {' '.join(record.notes)}",
        "| arm | requests | mean, s | p50 | p95 | p99 | first text, p50 | useful tokens/s | forward passes "
        "| rows per pass | tokens computed |\n|---|" + "---:|" * 10,
    ]
    for line in record.lines:
        counts = ((line.forward_passes, 0), (line.rows_per_pass, 1), (line.tokens_computed, 0))
        cells = ["-" if count is None else f"{count:,.{digits}f}" for count, digits in counts]
        parts[-1] += f"\n| {line.arm} | {line.requests} | {_latencies(line)} | {' | '.join(cells)} |"
    parts.append("| recipe | requests | R2 with forward passes | R2 with seconds |\n|---|---:|---:|---:|")
    for name, of_recipe in _base(record).correlations.items():
        cells = ["-" if value is None else f"{value:.2f}" for value in (of_recipe.forward_passes, of_recipe.seconds)]
        parts[-1] += f"\n| {name} | {of_recipe.requests} | {' | '.join(cells)} |"
    return "\n\n".join(parts)


def _base(record: Record) -> Line:
    return next((line for line in record.lines if line.arm == "predicted"), record.lines[0])


def _latencies(line: Line) -> str:
    seconds = (line.mean, line.p50, line.p95, line.first_p50)
    return " | ".join([*(f"{value:.3g}" for value in seconds), f"{line.tokens_per_second:,.0f}"])


def page_table(name: str, record: Record) -> str:
    """Return the results of a record as docs/measured/serving.md shows them."""
    settings, timeout = record.settings, record.settings.get("timeout")
    batch_size = settings.get("batch_size", settings.get("slots"))  # older records have `slots`
    load = f"recipes {settings['mix']}" if "mix" in settings else "replayed lengths"
    columns: list[tuple[str, Callable[[Line], float | None]]] = []
    if timeout is not None:
        load += f", a timeout of {timeout:g} seconds"
        columns += [("maximum", lambda line: line.maximum), ("expired", lambda line: line.expired)]
    if name == LENGTH_CLIENTS:
        columns += [("maximum", lambda line: line.maximum), ("probes/s", lambda line: line.probes_per_second)]
    else:
        columns += [("forward passes", lambda line: line.forward_passes)]
        columns += [("tokens computed", lambda line: line.tokens_computed)]
    rows = [
        f"**{record.model}**, {record.hardware}, {record.dtype}: {settings['requests']} requests from "
        f"{settings['clients']} clients in a closed loop, batches of {batch_size}, {load}.",
        "",
        "| arm | mean, s | p50 | p95 | first text, p50 | useful tokens/s |"
        + "".join(f" {title} |" for title, _ in columns),
        "|---|" + "---:|" * (5 + len(columns)),
    ]
    for line in record.lines:
        values = [value(line) for _, value in columns]
        cells = ["" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
        rows.append(f"| {' | '.join([line.arm, _latencies(line), *cells])} |")
    return "\n".join(rows)


def page_tables(folder: Path) -> str:
    """Return the tables of all kept runs."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.stem not in OTHER_TABLES]
    return "\n\n".join(page_table(path.stem, read(path)) for path in paths)
