"""Pictures of records: predicted against actual length, how long answers are, accuracy against work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import SettingError
from lastword.eval.arms import Arm, Arms, arms_of, recipes_of
from lastword.eval.journal import Record
from lastword.eval.table import label, spent
from lastword.survival.plot import matplotlib_of, save

FORMATS = ("png", "svg")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def save_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Every figure the records have something for, as PNG and SVG."""
    models = [arms for arms in arms_of(records) if arms.fixed]
    if not models:
        raise SettingError("no records of a fixed canvas were given; figures compare with one")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in FIGURES.items():
        figure = draw(models, records)
        for ending in FORMATS:
            drawn.append(folder / f"{name}.{ending}")
            save(figure, drawn[-1])
    return drawn


def predicted(models: Sequence[Arms], records: Sequence[Record]) -> Any:
    """The paper's prediction against the length the fixed canvas wrote: a point a prompt."""
    figure, axes = _grid(len(models), 3.2)
    for arms, ax in zip(models, axes):
        written = _written(arms)
        for colour, (task, mine) in zip(COLOURS, _by_task(arms.survival).items()):
            pairs = [(written[k], r["horizon"]) for r in mine if (k := _key(r)) in written]
            if pairs:
                ax.scatter(
                    *zip(*pairs),
                    s=5,
                    alpha=0.35,
                    color=colour,
                    label=task,
                    linewidths=0,
                    rasterized=True,
                )
        longest = max([r["horizon"] for r in (arms.fixed or Arm({}, [])).records])
        ax.plot((0, longest), (0, longest), color="black", linewidth=0.8)
        ax.set(title=arms.model, xlabel="length written on the fixed canvas", ylabel="predicted")
    axes[0].legend(fontsize="x-small", markerscale=3)
    return figure


def lengths(models: Sequence[Arms], records: Sequence[Record]) -> Any:
    """How long answers are, and how long they were predicted to be."""
    figure, axes = _grid(len(models), 2.6)
    for arms, ax in zip(models, axes):
        written = list(_written(arms).values())
        horizons = [r["horizon"] for r in arms.survival.records] if arms.survival else []
        bins = range(0, max([*written, *horizons]) + 8, 8)
        ax.hist(
            written, bins=bins, alpha=0.6, color="tab:blue", label="written on the fixed canvas"
        )
        if horizons:
            ax.hist(
                horizons, bins=bins, histtype="step", color="tab:red", label="predicted, the paper"
            )
        ax.set(title=arms.model, xlabel="slots, end token included", ylabel="answers")
    axes[0].legend(fontsize="x-small")
    return figure


def pareto(models: Sequence[Arms], records: Sequence[Record]) -> Any:
    """Accuracy against columns of every recipe that answered half of the baseline's samples or more."""
    points = {arms.model: _points(arms, records) for arms in models}
    # One number for a recipe in every panel, from the least work to the most.
    work = {name: at[0] for mine in points.values() for name, at in mine.items()}
    numbers = {name: place for place, name in enumerate(sorted(work, key=work.__getitem__), 1)}
    figure, axes = _grid(len(models), 3.4, legend=0.16 * (len(numbers) + 1) / 2)
    for arms, ax in zip(models, axes):
        for name, (columns, moved) in points[arms.model].items():
            ax.plot(columns, moved, "o", color="tab:blue", markersize=9, alpha=0.25)
            ax.annotate(numbers[name], (columns, moved), ha="center", va="center", fontsize=6)
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set(xscale="log", title=arms.model, xlabel="columns, as a share of the fixed canvas's")
        ax.set_ylabel("points of accuracy gained")
    lines = [f"{number}  {name}" for name, number in numbers.items()]
    half = (len(lines) + 1) // 2
    for x, part in ((0.02, lines[:half]), (0.52, lines[half:])):
        figure.text(x, 0.005, "\n".join(part), fontsize=6, va="bottom")
    return figure


def _points(arms: Arms, records: Sequence[Record]) -> dict[str, tuple[float, float]]:
    """Work and gain in accuracy of each recipe of a model, by label."""
    base, found = arms.fixed or Arm({}, []), {}
    for arm in recipes_of([r for r in records if r["model"] == arms.model]):
        kept = {_key(r) for r in arm.records}
        shared = [r for r in base.records if _key(r) in kept]
        if 2 * len(shared) >= len(base.records):
            columns = spent(arm.records, "columns") / spent(shared, "columns")
            moved = 100 * (_mean(arm.records) - _mean(shared))
            found[label(json.dumps(arm.recipe))] = (columns, moved)
    return found


FIGURES: dict[str, Callable[[Sequence[Arms], Sequence[Record]], Any]] = {
    "predicted": predicted,
    "lengths": lengths,
    "pareto": pareto,
}


def _grid(count: int, height: float, legend: float = 0.0) -> tuple[Any, list[Any]]:
    """Panels, two a row; `legend` inches are left free below them."""
    rows = (count + 1) // 2
    tall = height * rows + legend
    figure = matplotlib_of().figure.Figure(figsize=(9 if count > 1 else 5, tall))
    figure.set_layout_engine("constrained", rect=(0, legend / tall, 1, 1 - legend / tall))
    return figure, list(figure.subplots(rows, min(count, 2), squeeze=False).flat)[:count]


def _written(arms: Arms) -> dict[tuple[str, int], int]:
    """Lengths of the answers the fixed canvas finished, end token included."""
    records = arms.fixed.records if arms.fixed else []
    return {_key(r): r["length"] + 1 for r in records if r["finish"] == "ended"}


def _by_task(arm: Arm | None) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in arm.records if arm else ():
        found.setdefault(record["task"], []).append(record)
    return found


def _key(record: Record) -> tuple[str, int]:
    return record["task"], record["place"]


def _mean(records: Iterable[Record]) -> float:
    scores = [record["score"] for record in records]
    return sum(scores) / len(scores)
