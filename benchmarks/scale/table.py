"""Tables of the record, as docs/measured/scale.md shows them."""

from __future__ import annotations

from benchmarks.scale.arms import ARMS, BEST
from benchmarks.scale.record import Come, Line, Record, read

BASE = "predicted, least requests"  # machines are told in shares of its


def table(record: Record) -> str:
    """Every traffic: arms at one rate, and the replicas each needs for one p95."""
    told = [
        _traffic(name, come, [line for line in record.lines if line.traffic == name], record)
        for name, come in record.traffic.items()
    ]
    return "\n\n".join(told)


def _traffic(name: str, come: Come, lines: list[Line], record: Record) -> str:
    load, replicas = record.settings["load"], record.settings["replicas"]
    rows = [
        f"**{name}**: answers of {come.tokens:.0f} tokens on average; predicted against true work R2 "
        f"{come.r2:.2f}; {come.rate:,.0f} requests a second, {load:.0%} of what {replicas:,} replicas with a "
        "predicted canvas can do.",
        "",
        "| arm | a replica can do, requests/s | p50, s | p95, s | p99, s | useful tokens/s | replicas for "
        f"a p95 of {come.target:g} s | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    base = next(line.machines for line in lines if line.arm == BASE)
    for line in lines:
        canvas = ARMS[line.arm].canvas
        seconds = [f"{own:.2f}" if own is not None else "grows" for own in _percentiles(line)]
        cells = [f"{come.capacity[canvas]:.2f}", *seconds, f"{line.tokens_per_second:,.0f}"]
        cells.append(f"{line.machines:,}" if line.machines else "none")
        cells.append(f"{line.machines / base:.2f}x" if line.machines and base else "")
        rows.append(f"| {line.arm} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _percentiles(line: Line) -> tuple[float | None, ...]:
    return line.p50, line.p95, line.p99


def limits(record: Record) -> str:
    """The router's, the reports' and the probe's."""
    rows = ["| | " + " | ".join(record.traffic) + " |", "|---|" + "---:|" * len(record.traffic)]
    coming = record.traffic.values()
    rows += [
        _row("probe, ms of a replica", [f"{own.probe_ms:.0f}" for own in coming]),
        _row("a replica that did nothing else: probes a second", [f"{1e3 / own.probe_ms:.0f}" for own in coming]),
        _row(
            "replicas that probes keep busy, at the rate above",
            [f"{own.rate * own.probe_ms / 1e3:,.0f}" for own in coming],
        ),
        _row("its share of a full replica's time", [f"{own.probe_share:.0%}" for own in coming]),
        _row("the same at 50% load", [f"{0.5 * own.probe_share:.0%}" for own in coming]),
        _row("answers that take less time than their probe: up to, tokens", [str(own.probe_bound) for own in coming]),
        _row(
            "a router's decisions a second over the requests of all replicas",
            [f"{1e6 / record.decision_us / own.rate:,.0f}x" for own in coming],
        ),
    ]
    fresh = {name: record.swept(name, BEST) for name in record.traffic}
    for every in dict.fromkeys(line.every for line in record.stale):
        mine = [line for line in record.stale if line.every == every]
        rows.append(
            _row(
                f"p95 by reports every {every:g} s, beside fresh ones: alone / own sends added",
                [
                    " / ".join(f"{p95 / fresh[own.traffic] - 1:+.0%}" for p95 in (own.alone, own.counting))
                    for own in mine
                ],
            )
        )
    paid = [
        f"{most}: " + (f"{found[0]} to {found[1]} tokens" if found else "never") for most, found in record.pays.items()
    ]
    return "\n".join(rows) + f"\n\nA probe pays, by `max_tokens`: {'; '.join(paid)}."


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def kept() -> str:
    """The first table, of the record that is kept."""
    return table(read())


def kept_limits() -> str:
    """The second one."""
    return limits(read())
