"""The figure of the record: p95 by load, replicas for a target p95, and the effect of stale reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.scale.arms import BEST
from benchmarks.scale.record import Record
from benchmarks.scale.table import BASE
from lastword.viz.figures import AMBER, BLUE, INK, ORANGE, PINK, SKY, new_figure, save

LABELS = {
    "canvas 1024, stop at end": ("1024 slots, stop at end", ORANGE, "-"),
    "predicted, random": ("predicted, random", AMBER, "-"),
    "predicted, round robin": ("predicted, round robin", PINK, "--"),
    BASE: ("predicted, least requests", SKY, "-"),
    BEST: ("predicted, least work", BLUE, "--"),
    "predicted, least true work": ("the same, true work", INK, ":"),
}
BARS = {"canvas 1024": "1024 slots"} | {
    arm: LABELS[arm][0] for arm in ("canvas 1024, stop at end", "predicted, random", BASE, BEST)
}
RULES = {"one token per pass": BLUE, "entropy bound": ORANGE}  # colours
MAX_LOAD = 1.0
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # seconds


def draw(record: Record, picture: Path) -> None:
    """Draw four panels; lines are labelled at their ends."""
    figure = new_figure(9.6, 5.8)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    for ax, name in zip((first, second), RULES):
        _loads(ax, record, name)
    _replicas(third, record)
    _stale(fourth, record)
    save(figure, picture)


class LineEnd(NamedTuple):
    """The last value of a line, and its label."""

    height: float
    label: str
    colour: str


def label_ends(ax: Any, x: int | float, ends: Iterable[LineEnd], gap: int | float, *, is_log: bool = False) -> None:
    """Write labels next to the ends of lines, at least a gap apart; a factor on a logarithmic axis."""
    lowest = -float("inf")
    for end in sorted(ends):
        height = max(end.height, lowest)
        ax.text(x, height, end.label, color=end.colour, fontsize="small", va="center")
        lowest = height * gap if is_log else height + gap


def _loads(ax: Any, record: Record, name: str) -> None:
    shares = [100 * load for load in record.loads if load <= MAX_LOAD]
    ends, lowest = list[LineEnd](), float("inf")
    for arm, (label, colour, line) in LABELS.items():
        (curve,) = (curve for curve in record.curves if (curve.traffic, curve.arm) == (name, arm))
        p95 = curve.p95[: len(shares)]
        ax.plot(shares, p95, color=colour, linestyle=line)
        ends.append(LineEnd(p95[-1], label, colour))
        lowest = min(lowest, *p95)
    gap = (max(ends).height / lowest) ** 0.065
    label_ends(ax, shares[-1] + 1, ends, gap, is_log=True)
    ax.set(
        title=name, xlabel="load, % of the capacity with predicted canvases", ylabel="p95, s", yscale="log",
        xlim=(shares[0], shares[-1] + 34), xticks=shares,
    )  # fmt: skip
    low, high = ax.get_ylim()
    ticks = [tick for tick in TICKS if low < tick < high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)


def _replicas(ax: Any, record: Record) -> None:
    """Draw the replicas for a target p95 by arm and unmask rule."""
    for side, name in enumerate(RULES):
        traffic = record.traffic[name]
        for row, arm in enumerate(BARS):
            (line,) = (line for line in record.lines if (line.traffic, line.arm) == (name, arm))
            at, replicas = row + 0.4 * side - 0.2, line.replicas or 0
            ax.barh(at, replicas, height=0.38, color=RULES[name])
            ax.text(replicas, at, f" {replicas:,}", va="center", fontsize="small", color=RULES[name])
        caption = f"{name}: {traffic.rate:,.0f} requests/s, p95 {traffic.target:g} s"
        place = {"transform": ax.transAxes, "ha": "right"}
        ax.text(0.97, 0.5 - 0.1 * side, caption, **place, fontsize="small", color=RULES[name])
    longest = max(line.replicas or 0 for line in record.lines if line.traffic in RULES)
    ax.set(xlabel="replicas needed", xlim=(0, 1.15 * longest))
    ax.set_yticks(range(len(BARS)), list(BARS.values()), fontsize="small")
    ax.invert_yaxis()
    ax.grid(visible=False)


def _stale(ax: Any, record: Record) -> None:
    """Draw the effect of stale reports, alone and with the requests that the router has sent since."""
    ends, ages = list[LineEnd](), list[float]()
    for name in RULES:
        stale = [item for item in record.stale if item.traffic == name]
        fresh, ages = record.swept(name, BEST), [item.every for item in stale]
        for values, line, label in (
            ([item.alone for item in stale], "-", "reports only"),
            ([item.counting for item in stale], "--", "and sent requests"),
        ):
            rises = [100 * (p95 / fresh - 1) for p95 in values]
            ax.plot(ages, rises, line, marker="o", color=RULES[name], markersize=3)
            ends.append(LineEnd(rises[-1], f"{name},\n{label}", RULES[name]))
    label_ends(ax, 1.03 * ages[-1], ends, max(end.height for end in ends) / 6)
    ax.set(
        xlabel="seconds between reports of a replica", ylabel="increase of p95, %",
        xlim=(0, 1.42 * ages[-1]), ylim=(None, 1.1 * max(end.height for end in ends)),
    )  # fmt: skip
