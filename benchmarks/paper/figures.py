"""Figures of records: predicted against written length, distributions of lengths, accuracy against cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.labels import label_lines, label_points
from benchmarks.paper.tables import Arm, answers, arms_of, recipe_arms
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.evaluate.records import Answer, Record
from lastword.evaluate.tables import SampleKey, by_subject, finished_lengths, on_shared_samples, sample_key, total_cost
from lastword.io.files import check_folder
from lastword.policies.cache import DualCache, NoCache
from lastword.policies.commit import Never
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.viz.figures import BLUE, FAINT, INK, ORANGE, SOFT, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Name = TypeVar("Name")
Point = tuple[float, float]
FORMATS = ("png", "svg")
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)  # percent of the baseline's cost
# Labels of our default, by whether it unmasks several tokens per pass and has a cache.
OURS = {
    (False, False): "our default",
    (True, False): "+ several tokens per pass",
    (False, True): "+ cache",
    (True, True): "+ both",
}


def save_figures(records: Sequence[Record], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw every figure as PNG and SVG, with a panel per model that answered on a fixed canvas."""
    panels = [
        panel for subject, arm in by_subject(answers(records)).items() if (panel := Panel.of(subject, arm)) is not None
    ]
    if not panels:
        raise SettingError("the records have no fixed canvas, which the figures compare with; add records of one")
    check_folder(folder)
    paths = []
    for name, draw in FIGURES.items():
        with styled():
            figure = draw(panels)
        for ending in formats:
            paths.append(folder / f"{name}.{ending}")
            save(figure, paths[-1])
    return paths


@dataclass(frozen=True)
class Panel:
    """The arms of one model: its baseline, the paper's prediction and every recipe."""

    subject: str
    fixed: list[Answer]
    survival: list[Answer]
    recipes: list[Arm]
    slots: int  # of the longest baseline

    @classmethod
    def of(cls, subject: str, records: Sequence[Answer]) -> Panel | None:
        """Return the panel of a model, or None without a fixed canvas."""
        benchmarks = arms_of(records)
        baselines = [arms.fixed for arms in benchmarks if arms.fixed]
        fixed = [record for arm in baselines for record in arm.records]
        survival = [record for arms in benchmarks if arms.survival for record in arms.survival.records]
        slots = max((arm.slots or 0 for arm in baselines), default=0)
        return cls(subject, fixed, survival, recipe_arms(records), slots) if fixed else None

    @property
    def lengths(self) -> dict[SampleKey, int]:
        """The lengths of the answers that ended on the fixed canvas, with their end token."""
        return finished_lengths(self.fixed)


def predicted(panels: Sequence[Panel]) -> Figure:
    """Draw the paper's prediction against the length on the fixed canvas, a point per prompt."""
    figure, axes = _grid(len(panels), 3.0)
    for panel, ax in zip(panels, axes):
        lengths = panel.lengths
        points = [(lengths[sample_key(r)], r.horizon) for r in panel.survival if sample_key(r) in lengths]
        longest = max(1, *(record.horizon for record in panel.fixed))
        if points:
            x, y = zip(*points)
            ax.scatter(x, y, s=6, color=BLUE, alpha=0.25, linewidths=0, rasterized=True)
        ax.plot((0, longest), (0, longest), color=INK, linewidth=1)
        ax.text(0.04, 0.95, "canvas longer than needed", va="top", color=SOFT, transform=ax.transAxes)
        ax.text(0.96, 0.05, "answer truncated", ha="right", color=SOFT, transform=ax.transAxes)
        ax.set(
            title=panel.subject, xlabel="length on the fixed canvas", ylabel="predicted length",
            xlim=(0, longest), ylim=(0, longest),
        )  # fmt: skip
    return figure


def lengths(panels: Sequence[Panel]) -> Figure:
    """Draw the distributions of written and of predicted lengths."""
    figure, axes = _grid(len(panels), 2.4)
    for panel, ax in zip(panels, axes):
        written = list(panel.lengths.values())
        horizons = [record.horizon for record in panel.survival]
        bins = range(0, max([*written, *horizons, 1]) + 8, 8)
        ax.hist(written, bins=bins, color=BLUE, alpha=0.45)
        ax.hist(horizons, bins=bins, histtype="step", color=ORANGE, linewidth=1.8)
        ax.set(title=panel.subject, xlabel="length in slots, end token included", ylabel="answers")
        label_lines(ax, (("area: length on the fixed canvas", BLUE), ("line: predicted by the paper", ORANGE)))
    return figure


def pareto(panels: Sequence[Panel]) -> Figure:
    """Draw accuracy against cost of every recipe that answered at least half of the baseline's samples.

    Recipes with a label set the limits; the others are dots behind them. The band joins the recipes that no
    other recipe beats in both.
    """
    figure, axes = _grid(len(panels), 3.3)
    for panel, ax in zip(panels, axes):
        points = _points(panel)
        if not points:  # every prompt was too long
            continue
        best = [points[recipe] for recipe in frontier(points)]
        ax.axhline(0, color=SOFT, linewidth=0.8)
        ax.plot(*zip(*points.values()), "o", color=FAINT, markersize=4, zorder=1)
        ax.plot(*zip(*best), "-", color=BLUE, linewidth=5, alpha=0.2, zorder=1)
        labelled = {name: at for recipe, at in points.items() if (name := label(recipe, panel.slots)) is not None}
        colours = [BLUE if name in OURS.values() else INK for name in labelled]
        for at, colour in zip(labelled.values(), colours):
            ax.plot(*at, "o", color=colour, markersize=6)
        ax.set(
            xscale="log", title=panel.subject, xlabel="tokens computed, % of the fixed canvas",
            ylabel="difference in accuracy, points",
        )  # fmt: skip
        _set_limits(ax, [*labelled.values(), *best])
        label_points(ax, labelled, colours)
    return figure


def label(recipe: Recipe, slots: int) -> str | None:
    """Return the label of a recipe for its point, or None: only a few recipes have a label, so that all fit.

    >>> label(Recipe(length=Survival(256)), 256), label(Recipe(length=Survival(64)), 256)
    ('the paper', None)
    >>> label(Recipe(length=default_length(256), unmask=AboveThreshold(0.9), block=32), 256)
    '+ several tokens per pass'
    """
    several = isinstance(recipe.unmask, AboveThreshold)
    if (recipe.commit, recipe.sampling) != (Never(), Sampling()):
        return None
    if not several and recipe.unmask != MostConfident():
        return None
    if recipe.length == default_length(slots) and recipe.cache in (NoCache(), DualCache()):
        return OURS[several, recipe.cache == DualCache()]
    if recipe.cache != NoCache():
        return None
    if isinstance(recipe.length, Daedal):
        return "DAEDAL" if several else None
    plain = {
        Fixed(slots): "fixed canvas",
        StopAtEnd(Fixed(slots)): "stop at end",
        Survival(slots): "the paper" if recipe.block is None else None,
    }
    return None if several else plain.get(recipe.length)


def _set_limits(ax: Axes, points: Sequence[Point]) -> None:
    """Show these points with room for their labels; costs are marked in percent."""
    costs, gains = zip(*points)
    low, high = min(costs) / 2, max(costs) * 2.5
    room = 0.15 * (max(gains) - min(gains)) + 0.3
    ax.set_ylim(min(gains) - room, max(gains) + room)
    ticks = [tick for tick in TICKS if low <= tick / 100 <= high]
    ax.set_xticks([tick / 100 for tick in ticks], [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low, high)


def frontier(points: Mapping[Name, Point]) -> list[Name]:
    """Return the points that are more accurate than all cheaper ones, cheapest first.

    >>> frontier({"a": (0.1, -2.0), "b": (0.2, -3.0), "c": (0.3, 1.0)})
    ['a', 'c']
    """
    best: list[Name] = []
    for name in sorted(points, key=lambda key: (points[key][0], -points[key][1])):
        if not best or points[name][1] > points[best[-1]][1]:
            best.append(name)
    return best


def _points(panel: Panel) -> dict[Recipe, Point]:
    """Return the cost and the gain in accuracy of each recipe, on the samples that both answered."""
    points = {}
    for arm in panel.recipes:
        base, other = on_shared_samples(panel.fixed, arm.records)
        if 2 * len(other) >= len(panel.fixed) and total_cost(base, "tokens_computed"):
            gain = sum(o.score - b.score for b, o in zip(base, other)) / len(other)
            cost = total_cost(other, "tokens_computed") / total_cost(base, "tokens_computed")
            points[arm.recipe] = (cost, 100 * gain)
    return points


FIGURES: dict[str, Callable[[Sequence[Panel]], Figure]] = {"predicted": predicted, "lengths": lengths, "pareto": pareto}


def _grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, two per row."""
    rows = (count + 1) // 2
    figure = new_figure(9 if count > 1 else 5, height * rows)
    return figure, list(figure.subplots(rows, min(count, 2), squeeze=False).flat)[:count]
