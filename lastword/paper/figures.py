"""Pictures of records: predicted against actual length, how long answers are, accuracy against work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lastword.errors import SettingError
from lastword.evaluate.records import Answer, Record
from lastword.io.files import check_folder
from lastword.paper.arms import Arm, arms_of, recipes_of
from lastword.paper.overview import spent
from lastword.paper.pairing import Key, answers, by_subject, lengths_written, on_shared, sample_of
from lastword.paper.words import OURS, in_words
from lastword.recipe.recipe import Recipe
from lastword.viz.figures import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    SOFT,
    label_lines,
    label_points,
    new_figure,
    save,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Name = TypeVar("Name")
Point = tuple[float, float]
FORMATS = ("png", "svg")
SHARES = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # percent, where they are marked


def save_figures(records: Sequence[Record], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Every figure, as PNG and SVG: a panel a model that answered on a fixed canvas."""
    panels = [
        panel
        for subject, mine in by_subject(answers(records)).items()
        if (panel := Panel.of(subject, mine)) is not None
    ]
    if not panels:
        raise SettingError("no records of a fixed canvas were given; figures compare with one")
    check_folder(folder)
    drawn = []
    for name, draw in FIGURES.items():
        with styled():
            figure = draw(panels)
        for ending in formats:
            drawn.append(folder / f"{name}.{ending}")
            save(figure, drawn[-1])
    return drawn


@dataclass(frozen=True)
class Panel:
    """What is drawn of one model: its baseline, the paper's prediction, every recipe."""

    subject: str
    fixed: list[Answer]
    survival: list[Answer]
    recipes: list[Arm]
    slots: int  # of the baseline's canvas, the longest of them

    @classmethod
    def of(cls, subject: str, records: Sequence[Answer]) -> Panel | None:
        every = arms_of(records)
        bases = [arms.fixed for arms in every if arms.fixed]
        fixed = [r for base in bases for r in base.records]
        survival = [r for arms in every if arms.survival for r in arms.survival.records]
        slots = max((base.slots or 0 for base in bases), default=0)
        return cls(subject, fixed, survival, recipes_of(records), slots) if fixed else None

    @property
    def written(self) -> dict[Key, int]:
        """Lengths of the answers the fixed canvas finished, end token included."""
        return lengths_written(self.fixed)


def predicted(panels: Sequence[Panel]) -> Figure:
    """The paper's prediction against the length the fixed canvas wrote: a point a prompt."""
    figure, axes = _grid(len(panels), 3.0)
    for panel, ax in zip(panels, axes):
        written = panel.written
        points = [(written[sample_of(r)], r.horizon) for r in panel.survival if sample_of(r) in written]
        longest = max(1, *(r.horizon for r in panel.fixed))
        if points:
            across, up = zip(*points)
            ax.scatter(across, up, s=6, color=BLUE, alpha=0.25, linewidths=0, rasterized=True)
        ax.plot((0, longest), (0, longest), color=INK, linewidth=1)
        ax.text(0.04, 0.95, "room to spare", va="top", color=SOFT, transform=ax.transAxes)
        ax.text(0.96, 0.05, "cut short", ha="right", color=SOFT, transform=ax.transAxes)
        ax.set(
            title=panel.subject, xlabel="slots written on the fixed canvas", ylabel="slots predicted",
            xlim=(0, longest), ylim=(0, longest),
        )  # fmt: skip
    return figure


def lengths(panels: Sequence[Panel]) -> Figure:
    """How long answers are, and how long they were predicted to be."""
    figure, axes = _grid(len(panels), 2.4)
    for panel, ax in zip(panels, axes):
        written = list(panel.written.values())
        horizons = [r.horizon for r in panel.survival]
        bins = range(0, max([*written, *horizons, 1]) + 8, 8)
        ax.hist(written, bins=bins, color=BLUE, alpha=0.45)
        ax.hist(horizons, bins=bins, histtype="step", color=ORANGE, linewidth=1.8)
        ax.set(title=panel.subject, xlabel="slots, end token included", ylabel="answers")
        said = (("area: written on the fixed canvas", BLUE), ("line: predicted, the paper", ORANGE))
        label_lines(ax, said)
    return figure


def pareto(panels: Sequence[Panel]) -> Figure:
    """Accuracy against columns of every recipe that answered half of the baseline's samples or more.

    Those that have a name in words are labelled and set the limits; the others are dots behind. The band
    joins what no other beats in both.
    """
    figure, axes = _grid(len(panels), 3.3)
    for panel, ax in zip(panels, axes):
        points = _points(panel)
        if not points:  # no prompt fitted
            continue
        best = [points[recipe] for recipe in frontier(points)]
        ax.axhline(0, color=SOFT, linewidth=0.8)
        ax.plot(*zip(*points.values()), "o", color=FAINT, markersize=4, zorder=1)
        ax.plot(*zip(*best), "-", color=BLUE, linewidth=5, alpha=0.2, zorder=1)
        named = {
            words: at for recipe, at in points.items() if (words := in_words(recipe, panel.slots)) is not None
        }
        colours = [BLUE if words in OURS.values() else INK for words in named]
        for at, colour in zip(named.values(), colours):
            ax.plot(*at, "o", color=colour, markersize=6)
        ax.set(
            xscale="log", title=panel.subject, xlabel="columns computed, % of the fixed canvas's",
            ylabel="points of accuracy gained",
        )  # fmt: skip
        _limit(ax, [*named.values(), *best])
        label_points(ax, named, colours)
    return figure


def _limit(ax: Axes, points: Sequence[Point]) -> None:
    """As much of the axes as holds these points and their names; shares are marked in percent."""
    shares, gains = zip(*points)
    low, high = min(shares) / 2, max(shares) * 2.5
    room = 0.15 * (max(gains) - min(gains)) + 0.3
    ax.set_ylim(min(gains) - room, max(gains) + room)
    ticks = [tick for tick in SHARES if low <= tick / 100 <= high]
    ax.set_xticks([tick / 100 for tick in ticks], [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low, high)


def frontier(points: Mapping[Name, Point]) -> list[Name]:
    """The recipes that none beats: each more accurate than all that cost less, cheapest first.

    >>> frontier({"a": (0.1, -2.0), "b": (0.2, -3.0), "c": (0.3, 1.0)})
    ['a', 'c']
    """
    found: list[Name] = []
    for recipe in sorted(points, key=lambda r: (points[r][0], -points[r][1])):
        if not found or points[recipe][1] > points[found[-1]][1]:
            found.append(recipe)
    return found


def _points(panel: Panel) -> dict[Recipe, Point]:
    """Columns and gain in accuracy of each recipe, on the samples both answered."""
    found = {}
    for arm in panel.recipes:
        base, own = on_shared(panel.fixed, arm.records)
        if 2 * len(own) >= len(panel.fixed) and spent(base, "columns"):
            moved = sum(o.score - b.score for b, o in zip(base, own)) / len(own)
            columns = spent(own, "columns") / spent(base, "columns")
            found[arm.recipe] = (columns, 100 * moved)
    return found


FIGURES: dict[str, Callable[[Sequence[Panel]], Figure]] = {
    "predicted": predicted,
    "lengths": lengths,
    "pareto": pareto,
}


def _grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Panels, two a row."""
    rows = (count + 1) // 2
    figure = new_figure(9 if count > 1 else 5, height * rows)
    return figure, list(figure.subplots(rows, min(count, 2), squeeze=False).flat)[:count]
