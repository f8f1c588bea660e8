"""A survival curve drawn with matplotlib: where the answer ends, and where its canvas does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from lastword.checks import check_number, shown
from lastword.errors import WrongTypeError
from lastword.show.picture import matplotlib_of, styled
from lastword.show.style import BLUE, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (7, 3.2)  # inches


def draw_survival(
    survival: Sequence[float],
    ax: Axes | None = None,
    *,
    horizon: int | float | Tensor | None = None,
    truth: int | float | None = None,
) -> Axes:
    """Draw S(0), ..., S(T) and mark the horizon, by default the mean rounded up, and the true length."""
    if isinstance(horizon, Tensor) and horizon.dim() == 0:
        horizon = horizon.item()
    for name, given in (("horizon", horizon), ("truth", truth)):
        if given is not None:
            check_number("plot", name, given, least=0)
    if ax is not None and not hasattr(ax, "axvline"):
        raise WrongTypeError(
            f"plot(ax={shown(ax)}) was given; ax must be an axis of matplotlib, or None"
        )
    if ax is not None:
        return _draw(ax, survival, horizon, truth)
    # Made outside of the style: a backend that is chosen inside is half undone at its end, and a notebook
    # would show no figure after this one.
    figure = matplotlib_of().pyplot.figure(figsize=SIZE, layout="constrained", facecolor="white")
    with styled():
        return _draw(figure.add_subplot(), survival, horizon, truth)


def _draw(
    ax: Axes,
    survival: Sequence[float],
    horizon: int | float | Tensor | None,
    truth: int | float | None,
) -> Axes:
    slots, mean = len(survival) - 1, math.fsum(survival[:-1])
    cut = min(max(1, math.ceil(mean)), slots) if horizon is None else float(horizon)
    ax.step(range(slots + 1), survival, where="post", color=BLUE)
    ax.fill_between(range(slots + 1), survival, step="post", color=BLUE, alpha=0.15, linewidth=0)
    marks = [(cut, f"canvas {cut:.0f} (dashed)", ORANGE, "--")]
    if truth is not None:
        marks.append((truth, f"true length {truth:.0f} (dotted)", INK, ":"))
    _mark(ax, marks, slots)
    ax.set(
        xlabel="slot k",
        ylabel="P(longer than k)",
        xlim=(0, slots),
        ylim=(0, 1.02),
        title=f"expected length {mean:.1f}, {survival[-1]:.1%} beyond {slots} slots",
    )
    return ax


def _mark(ax: Axes, marks: Sequence[tuple[int | float, str, str, str]], slots: int) -> None:
    """Lines across, and their names beside all of them: to the right where there is room."""
    places = [at for at, *_ in marks]
    left = max(places) > 0.7 * slots
    beside = min(places) if left else max(places)
    for number, (at, name, colour, line) in enumerate(marks):
        ax.axvline(at, color=colour, linestyle=line)
        ax.annotate(
            name, (beside, 0.93), (-5 if left else 5, -14 * number), textcoords="offset points",
            color=colour, ha="right" if left else "left", va="center",
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1},
        )  # fmt: skip
