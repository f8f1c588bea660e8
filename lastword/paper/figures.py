"""Pictures of records: predicted against actual length, how long answers are, accuracy against work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lastword.errors import SettingError
from lastword.eval.records import Answer, Record
from lastword.outside.files import check_folder
from lastword.paper.arms import Arm, arms_of, benchmark_of, recipes_of, said_as
from lastword.paper.overview import spent
from lastword.paper.pairing import Key, answers, by_subject, lengths_written, on_shared, sample_of
from lastword.recipe.recipe import Recipe
from lastword.survival.plot import matplotlib_of, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Name = TypeVar("Name")
FORMATS = ("png", "svg")
LOST = 10.0  # points: a recipe that loses more is no choice, and would squeeze the others together


def save_figures(
    records: Sequence[Record], folder: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
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
        with matplotlib_of().rc_context({"text.parse_math": False}):  # a name may hold a dollar
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

    @classmethod
    def of(cls, subject: str, records: Sequence[Answer]) -> Panel | None:
        every = arms_of(records)
        fixed = [r for arms in every if arms.fixed for r in arms.fixed.records]
        survival = [r for arms in every if arms.survival for r in arms.survival.records]
        return cls(subject, fixed, survival, recipes_of(records)) if fixed else None

    @property
    def written(self) -> dict[Key, int]:
        """Lengths of the answers the fixed canvas finished, end token included."""
        return lengths_written(self.fixed)


def predicted(panels: Sequence[Panel]) -> Figure:
    """The paper's prediction against the length the fixed canvas wrote: a point a prompt."""
    figure, axes = _grid(len(panels), 3.2)
    for panel, ax in zip(panels, axes):
        written = panel.written
        marks: dict[str, list[tuple[int, int]]] = {}
        for r in panel.survival:
            if sample_of(r) in written:
                task = said_as(benchmark_of(r), [r])
                marks.setdefault(task, []).append((written[sample_of(r)], r.horizon))
        for index, (task, points) in enumerate(sorted(marks.items())):
            written_at, predicted_at = zip(*points)
            ax.scatter(
                written_at, predicted_at, s=5, color=f"C{index}", alpha=0.35, linewidths=0,
                label=task, rasterized=True,
            )  # fmt: skip
        longest = max(r.horizon for r in panel.fixed)
        ax.plot((0, longest), (0, longest), color="black", linewidth=0.8)
        ax.set(title=panel.subject, xlabel="length written on the fixed canvas", ylabel="predicted")
        if marks:
            ax.legend(fontsize="xx-small", markerscale=3)
    return figure


def lengths(panels: Sequence[Panel]) -> Figure:
    """How long answers are, and how long they were predicted to be."""
    figure, axes = _grid(len(panels), 2.6)
    for panel, ax in zip(panels, axes):
        written = list(panel.written.values())
        horizons = [r.horizon for r in panel.survival]
        bins = range(0, max([*written, *horizons, 1]) + 8, 8)
        ax.hist(written, bins=bins, alpha=0.6, label="written on the fixed canvas")
        ax.hist(horizons, bins=bins, histtype="step", color="tab:red", label="predicted, the paper")
        ax.set(title=panel.subject, xlabel="slots, end token included", ylabel="answers")
    axes[0].legend(fontsize="x-small")
    return figure


def pareto(panels: Sequence[Panel]) -> Figure:
    """Accuracy against columns of every recipe that answered half of the baseline's samples or more.

    Those that no other beats in both are joined and numbered, one number for a recipe in every panel; what
    loses more than `LOST` points lies on the lower edge.
    """
    points = {panel.subject: _points(panel) for panel in panels}
    best = {subject: frontier(mine) for subject, mine in points.items()}
    work = {r: points[subject][r][0] for subject, mine in best.items() for r in mine}
    numbers = {
        recipe: number for number, recipe in enumerate(sorted(work, key=work.__getitem__), 1)
    }
    figure, axes = _grid(len(panels), 3.4, legend=0.15 * (len(numbers) + 2))
    for panel, ax in zip(panels, axes):
        mine = {r: (x, max(y, -LOST)) for r, (x, y) in points[panel.subject].items()}
        if not mine:  # no prompt fitted
            continue
        front = [mine[recipe] for recipe in best[panel.subject]]
        ax.plot(*zip(*mine.values()), "o", color="tab:gray", markersize=4, alpha=0.5)
        ax.plot(*zip(*front), "o-", color="tab:blue", markersize=11, alpha=0.35, linewidth=1)
        for recipe in best[panel.subject]:
            ax.annotate(str(numbers[recipe]), mine[recipe], ha="center", va="center", fontsize=7)
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set(
            xscale="log", title=panel.subject, xlabel="columns, as a share of the fixed canvas's"
        )
        ax.set_ylabel("points of accuracy gained")
    lines = [f"{number}  {recipe.label()}" for recipe, number in numbers.items()]
    figure.text(0.02, 0.005, "\n".join(lines), fontsize=7, va="bottom")
    return figure


def frontier(points: Mapping[Name, tuple[float, float]]) -> list[Name]:
    """The recipes that none beats: each more accurate than all that cost less, cheapest first.

    >>> frontier({"a": (0.1, -2.0), "b": (0.2, -3.0), "c": (0.3, 1.0)})
    ['a', 'c']
    """
    found: list[Name] = []
    for recipe in sorted(points, key=lambda r: (points[r][0], -points[r][1])):
        if not found or points[recipe][1] > points[found[-1]][1]:
            found.append(recipe)
    return found


def _points(panel: Panel) -> dict[Recipe, tuple[float, float]]:
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


def _grid(count: int, height: float, legend: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Panels, two a row; `legend` inches are left free below them."""
    rows = (count + 1) // 2
    tall = height * rows + legend
    figure = matplotlib_of().figure.Figure(figsize=(9 if count > 1 else 5, tall))
    figure.set_layout_engine("constrained", rect=(0, legend / tall, 1, 1 - legend / tall))
    return figure, list(figure.subplots(rows, min(count, 2), squeeze=False).flat)[:count]
