"""The picture of the record: p95 by load, replicas for one p95, and what stale reports cost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.scale.arms import BEST
from benchmarks.scale.record import Record
from benchmarks.scale.table import BASE
from lastword.viz.figures import AMBER, BLUE, INK, ORANGE, PINK, SKY, new_figure, save

SHOWN = {
    "canvas 1024, stop at end": ("1024 slots, stop at end", ORANGE, "-"),
    "predicted, random": ("predicted, random", AMBER, "-"),
    "predicted, round robin": ("predicted, round robin", PINK, "--"),
    BASE: ("predicted, least requests", SKY, "-"),
    BEST: ("predicted, least work", BLUE, "--"),
    "predicted, least true work": ("the same, true work", INK, ":"),
}
BARS = {"canvas 1024": "1024 slots"} | {
    arm: SHOWN[arm][0] for arm in ("canvas 1024, stop at end", "predicted, random", BASE, BEST)
}
TWO = ("one token a pass", "entropy bound")
RULE = {"one token a pass": BLUE, "entropy bound": ORANGE}
MOST_LOAD = 1.0
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # seconds


def draw(record: Record, picture: Path) -> None:
    """Four panels, labelled where the lines end."""
    figure = new_figure(9.6, 5.8)
    (left, right), (below, beside) = figure.subplots(2, 2)
    for ax, name in zip((left, right), TWO):
        _loads(ax, record, name)
    _machines(below, record)
    _stale(beside, record)
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
    shares = [100 * load for load in record.loads if load <= MOST_LOAD]
    ends, lowest = list[LineEnd](), float("inf")
    for arm, (label, colour, line) in SHOWN.items():
        (curve,) = (own for own in record.curves if (own.traffic, own.arm) == (name, arm))
        shown = curve.p95[: len(shares)]
        ax.plot(shares, shown, color=colour, linestyle=line)
        ends.append(LineEnd(shown[-1], label, colour))
        lowest = min(lowest, *shown)
    gap = (max(ends).height / lowest) ** 0.065
    label_ends(ax, shares[-1] + 1, ends, gap, is_log=True)
    ax.set(
        title=name, xlabel="load, % of what a predicted canvas can do", ylabel="p95, s", yscale="log",
        xlim=(shares[0], shares[-1] + 34), xticks=shares,
    )  # fmt: skip
    low, high = ax.get_ylim()
    ticks = [tick for tick in TICKS if low < tick < high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)


def _machines(ax: Any, record: Record) -> None:
    """Replicas for one p95, by arm and rule."""
    for side, name in enumerate(TWO):
        come = record.traffic[name]
        for row, arm in enumerate(BARS):
            (line,) = (own for own in record.lines if (own.traffic, own.arm) == (name, arm))
            at, many = row + 0.4 * side - 0.2, line.machines or 0
            ax.barh(at, many, height=0.38, color=RULE[name])
            ax.text(many, at, f" {many:,}", va="center", fontsize="small", color=RULE[name])
        told = f"{name}: {come.rate:,.0f} requests/s, p95 {come.target:g} s"
        place = {"transform": ax.transAxes, "ha": "right"}
        ax.text(0.97, 0.5 - 0.1 * side, told, **place, fontsize="small", color=RULE[name])
    most = max(line.machines or 0 for line in record.lines if line.traffic in TWO)
    ax.set(xlabel="replicas needed", xlim=(0, 1.15 * most))
    ax.set_yticks(range(len(BARS)), list(BARS.values()), fontsize="small")
    ax.invert_yaxis()
    ax.grid(visible=False)


def _stale(ax: Any, record: Record) -> None:
    """Draw the cost of old reports, alone and with the router's sends added."""
    ends, ages = list[LineEnd](), list[float]()
    for name in TWO:
        mine = [own for own in record.stale if own.traffic == name]
        fresh, ages = record.swept(name, BEST), [own.every for own in mine]
        for values, line, told in (
            ([own.alone for own in mine], "-", "reports alone"),
            ([own.counting for own in mine], "--", "own sends added"),
        ):
            rises = [100 * (p95 / fresh - 1) for p95 in values]
            ax.plot(ages, rises, line, marker="o", color=RULE[name], markersize=3)
            ends.append(LineEnd(rises[-1], f"{name},\n{told}", RULE[name]))
    label_ends(ax, 1.03 * ages[-1], ends, max(end.height for end in ends) / 6)
    ax.set(
        xlabel="seconds between a replica's reports", ylabel="p95 above that of fresh ones, %",
        xlim=(0, 1.42 * ages[-1]), ylim=(None, 1.1 * max(end.height for end in ends)),
    )  # fmt: skip
