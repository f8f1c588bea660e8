"""The picture of the record: p95 by load, replicas for one p95, and what stale reports cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.scale.arms import BEST
from benchmarks.scale.record import Record
from benchmarks.scale.table import BASE
from lastword.survival.plot import save

# Okabe and Ito's colours, told apart by everybody; every line has its name beside it besides.
SHOWN = {
    "canvas 1024, stop at end": ("1024 slots, stop at end", "#D55E00", "-"),
    "predicted, random": ("predicted, random", "#E69F00", "-"),
    "predicted, round robin": ("predicted, round robin", "#CC79A7", "--"),
    BASE: ("predicted, least requests", "#56B4E9", "-"),
    BEST: ("predicted, least work", "#0072B2", "--"),
    "predicted, least true work": ("the same, true work", "#000000", ":"),
}
BARS = {"canvas 1024": "1024 slots"} | {
    arm: SHOWN[arm][0] for arm in ("canvas 1024, stop at end", "predicted, random", BASE, BEST)
}
TWO = ("one token a pass", "entropy bound")
INK = {"one token a pass": "#0072B2", "entropy bound": "#D55E00"}
MOST_LOAD = 1.0
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # seconds


class End(NamedTuple):
    """Where a line ends, and what it is called."""

    height: float
    label: str
    colour: str


def draw(record: Record, picture: Path) -> None:
    """Four panels, labelled where the lines end."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(9.6, 5.8), layout="constrained")
    (left, right), (below, beside) = figure.subplots(2, 2)
    for ax, name in zip((left, right), TWO):
        _loads(ax, record, name)
    _machines(below, record)
    _stale(beside, record)
    save(figure, picture)


def _named(ax: Any, at: float, ends: Sequence[End], gap: float, *, times: bool) -> None:
    """Names beside the ends of lines, pushed apart by a gap, or by so many times on a log axis."""
    lowest = 0.0
    for end in sorted(ends):
        height = max(end.height, lowest)
        ax.text(at, height, end.label, color=end.colour, fontsize="small", va="center")
        lowest = height * gap if times else height + gap


def _loads(ax: Any, record: Record, name: str) -> None:
    shares = [100 * load for load in record.loads if load <= MOST_LOAD]
    ends, lowest = list[End](), float("inf")
    for arm, (label, colour, line) in SHOWN.items():
        (curve,) = (own for own in record.curves if (own.traffic, own.arm) == (name, arm))
        shown = curve.p95[: len(shares)]
        ax.plot(shares, shown, color=colour, linestyle=line)
        ends.append(End(shown[-1], label, colour))
        lowest = min(lowest, *shown)
    gap = (max(ends).height / lowest) ** 0.065
    _named(ax, shares[-1] + 1, ends, gap, times=True)
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
            ax.barh(at, many, height=0.38, color=INK[name])
            ax.text(many, at, f" {many:,}", va="center", fontsize="small", color=INK[name])
        told = f"{name}: {come.rate:,.0f} requests/s, p95 {come.target:g} s"
        place = {"transform": ax.transAxes, "ha": "right"}
        ax.text(0.97, 0.5 - 0.1 * side, told, **place, fontsize="small", color=INK[name])
    most = max(line.machines or 0 for line in record.lines if line.traffic in TWO)
    ax.set(xlabel="replicas needed", xlim=(0, 1.15 * most))
    ax.set_yticks(range(len(BARS)), list(BARS.values()), fontsize="small")
    ax.invert_yaxis()


def _stale(ax: Any, record: Record) -> None:
    """What reports of some age cost, by themselves and with the router's own sends added."""
    ends, ages = list[End](), list[float]()
    for name in TWO:
        mine = [own for own in record.stale if own.traffic == name]
        fresh, ages = record.swept(name, BEST), [own.every for own in mine]
        for values, line, told in (
            ([own.alone for own in mine], "-", "reports alone"),
            ([own.counting for own in mine], "--", "own sends added"),
        ):
            rises = [100 * (p95 / fresh - 1) for p95 in values]
            ax.plot(ages, rises, line, marker="o", color=INK[name], markersize=3)
            ends.append(End(rises[-1], f"{name},\n{told}", INK[name]))
    _named(ax, 1.03 * ages[-1], ends, max(end.height for end in ends) / 6, times=False)
    ax.set(
        xlabel="seconds between a replica's reports", ylabel="p95 above that of fresh ones, %",
        xlim=(0, 1.42 * ages[-1]), ylim=(None, 1.1 * max(end.height for end in ends)),
    )  # fmt: skip
