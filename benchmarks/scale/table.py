"""Tables of the record: all results, and the shortened tables of docs/measured/scale.md."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.scale.arms import ARMS, BEST, BY_REQUESTS
from benchmarks.scale.record import Line, Record, TrafficSummary, read

BASE = BY_REQUESTS  # numbers of replicas are compared with those of this arm
PAGE_REPORTS = (0.5, 1.0, 2.0)  # seconds between the reports that the page shows


def table(record: Record) -> str:
    """Return all results of a record: the arms of each traffic, and the limits."""
    tables = [
        _traffic(name, summary, [line for line in record.lines if line.traffic == name], record)
        for name, summary in record.traffic.items()
    ]
    return "\n\n".join([*tables, limits(record, tuple(dict.fromkeys(item.every for item in record.stale)))])


def _traffic(name: str, summary: TrafficSummary, lines: list[Line], record: Record) -> str:
    rows = [
        f"**{name}**: {_rate(name, record)}",
        "",
        "| arm | capacity of a replica, requests/s | p50, s | p95, s | p99, s | useful tokens/s "
        f"| replicas for a p95 of {summary.target:g} s | relative |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    base = next(line.replicas for line in lines if line.arm == BASE)
    for line in lines:
        seconds = [_seconds(value) for value in (line.p50, line.p95, line.p99)]
        cells = [f"{summary.capacity[ARMS[line.arm].canvas]:.2f}", *seconds, f"{line.tokens_per_second:,.0f}"]
        cells += [f"{line.replicas:,}" if line.replicas else "none", _relative(line, base)]
        rows.append(f"| {line.arm} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _rate(name: str, record: Record) -> str:
    """Return a sentence with the rate, the mean length and the quality of the prediction of a traffic."""
    summary, load, replicas = record.traffic[name], record.settings["load"], record.settings["replicas"]
    return (
        f"{summary.rate:,.0f} requests/s, which is {load:.0%} of the capacity of {replicas:,} replicas with a "
        f"predicted canvas; mean answer {summary.tokens:.0f} tokens; R2 of predicted and true work {summary.r2:.2f}."
    )


def _seconds(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else "grows"


def _relative(line: Line, base: int | None) -> str:
    return f"{line.replicas / base:.2f}x" if line.replicas and base else ""


def page_table() -> str:
    """Return the table of the page: p95 and replicas of each arm, with columns for each traffic of the kept record."""
    record = read()
    heads = []
    for name, summary in record.traffic.items():
        heads += [f"{name}: p95, s", f"replicas for {summary.target:g} s"]
    rows = [f"| arm | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    bases = {line.traffic: line.replicas for line in record.lines if line.arm == BASE}
    for arm in ARMS:
        cells = []
        for line in (line for line in record.lines if line.arm == arm):
            replicas = f"{line.replicas:,} ({_relative(line, bases[line.traffic])})" if line.replicas else "none"
            cells += [_seconds(line.p95), replicas]
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    summaries = record.traffic.values()
    caption = (
        f"Rates: {record.settings['load']:.0%} of the capacity of {record.settings['replicas']:,} replicas with a "
        f"predicted canvas, which is {_join(f'{summary.rate:,.0f}' for summary in summaries)} requests/s. "
        "Mean answers: "
        f"{_join(f'{summary.tokens:.0f}' for summary in summaries)} tokens. R2 of predicted and true work: "
        f"{_join(f'{summary.r2:.2f}' for summary in summaries)}."
    )
    return "\n".join([*rows, "", caption])


def _join(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}"


def limits(record: Record, reports: tuple[float, ...]) -> str:
    """Return a table of the limits of probes, reports and router."""
    rows = ["| | " + " | ".join(record.traffic) + " |", "|---|" + "---:|" * len(record.traffic)]
    summaries = record.traffic.values()
    rows += [
        _row("time of a probe, ms", [f"{summary.probe_ms:.0f}" for summary in summaries]),
        _row("share of a fully loaded replica", [f"{summary.probe_share:.0%}" for summary in summaries]),
        _row("answers shorter than this take less time than their probe", [str(s.probe_bound) for s in summaries]),
        _row(
            "decisions per second of a router, relative to the requests",
            [f"{1e6 / record.decision_us / summary.rate:,.0f}x" for summary in summaries],
        ),
    ]
    fresh = {name: record.swept(name, BEST) for name in record.traffic}
    for every in reports:
        cells = [
            " / ".join(f"{p95 / fresh[item.traffic] - 1:+.0%}" for p95 in (item.alone, item.counting))
            for item in record.stale
            if item.every == every
        ]
        rows.append(_row(f"p95 with reports every {every:g} s: reports only / and sent requests", cells))
    for replicas in dict.fromkeys(fleet.replicas for fleet in record.small_fleets):
        cells = [f"{100 * fleet.change:+.1f}%" for fleet in record.small_fleets if fleet.replicas == replicas]
        rows.append(_row(f"p95 by predicted work instead of requests, {replicas} replicas", cells))
    ranges = [
        f"{slots}: " + (f"{lengths[0]} to {lengths[1]} tokens" if lengths else "never")
        for slots, lengths in record.useful_probe.items()
    ]
    return "\n".join([*rows, "", f"Lengths for which a probe saves time, by `max_tokens`: {'; '.join(ranges)}."])


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def page_limits() -> str:
    """Return the limits of the kept record with some of the report intervals."""
    return limits(read(), PAGE_REPORTS)
