"""The plot style of all figures, and the plot of a survival curve (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lastword.errors import SettingError, WrongTypeError, import_extra
from lastword.io.files import check_target, user_path, write
from lastword.validation import check_number, short_repr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER = "#56B4E9", "#E69F00"
INK, SOFT, FAINT = "#1D2226", "#5B646C", "#DCDFE2"  # text, axes, grids
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER)

STYLE: dict[str, object] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs on every machine
    "font.size": 10,
    "text.parse_math": False,  # a name may contain a dollar sign
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.prop_cycle": f"cycler('color', {[*COLOURS]})",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "lastword",  # instead of random ids: equal data gives equal files
}

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
SURVIVAL_SIZE = (7, 3.2)  # inches


def styled() -> AbstractContextManager[None]:
    """Return a context manager in which matplotlib uses STYLE."""
    return import_matplotlib().rc_context(STYLE)


def new_figure(width: int | float, height: int | float) -> Figure:
    """Return a figure of this size in inches, made without pyplot: it opens no window and need not be closed."""
    return import_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def check_picture(path: Path | None) -> None:
    """Raise SettingError if a picture cannot be written to a path, or ExtraError without matplotlib."""
    if path is not None:
        import_matplotlib()
        _format(path)
        check_target(path)


def save(figure: Figure, path: Path | str) -> None:
    """Write a figure in the format of the file name; equal data gives equal files."""
    path = user_path(path)
    image_format, content = _format(path), BytesIO()
    metadata = {"Date": None} if image_format == "svg" else None
    with styled():
        figure.savefig(content, format=image_format, dpi=DPI, metadata=metadata)
    write(path, content.getvalue())


def _format(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path} is not the name of a picture; give one that ends in {', '.join(FORMATS)}")
    return path.suffix.lower()[1:]


def import_matplotlib() -> Any:
    """Return the module `matplotlib`, with `matplotlib.pyplot` imported; raise ExtraError if it is not installed."""
    return import_extra("matplotlib.pyplot", "plot", "plotting")


def draw_survival(
    survival: Sequence[float],
    ax: Axes | None = None,
    *,
    horizon: int | float | Tensor | None = None,
    truth: int | float | None = None,
) -> Axes:
    """Plot S(0), ..., S(T), the horizon (default: the mean, rounded up) and the true length; return the axes."""
    if isinstance(horizon, Tensor) and horizon.dim() == 0:
        horizon = horizon.item()
    for name, value in (("horizon", horizon), ("truth", truth)):
        if value is not None:
            check_number("plot", name, value, minimum=0)
    if ax is not None and not hasattr(ax, "axvline"):
        raise WrongTypeError(f"plot(ax={short_repr(ax)}) was given; ax must be an axis of matplotlib, or None")
    if ax is not None:
        return _draw(ax, survival, horizon, truth)
    # The figure is made before STYLE applies: a backend selected inside its context would be reset on exit.
    figure = import_matplotlib().pyplot.figure(figsize=SURVIVAL_SIZE, layout="constrained", facecolor="white")
    with styled():
        return _draw(figure.add_subplot(), survival, horizon, truth)


def _draw(ax: Axes, survival: Sequence[float], horizon: int | float | Tensor | None, truth: int | float | None) -> Axes:
    slots, mean = len(survival) - 1, math.fsum(survival[:-1])
    canvas = min(max(1, math.ceil(mean)), slots) if horizon is None else float(horizon)
    ax.step(range(slots + 1), survival, where="post", color=BLUE)
    ax.fill_between(range(slots + 1), survival, step="post", color=BLUE, alpha=0.15, linewidth=0)
    marks = [(canvas, f"canvas {canvas:.0f} (dashed)", ORANGE, "--")]
    if truth is not None:
        marks.append((truth, f"true length {truth:.0f} (dotted)", INK, ":"))
    # All labels stand to the right of the last mark, or, if there is no space, to the left of the first.
    on_left = max(slot for slot, *_ in marks) > 0.7 * slots
    anchor = min(slot for slot, *_ in marks) if on_left else max(slot for slot, *_ in marks)
    for row, (slot, label, colour, line) in enumerate(marks):
        ax.axvline(slot, color=colour, linestyle=line)
        ax.annotate(
            label,
            (anchor, 0.93),
            (-5 if on_left else 5, -14 * row),
            textcoords="offset points",
            color=colour,
            ha="right" if on_left else "left",
            va="center",
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1},
        )
    ax.set(
        xlabel="slot k",
        ylabel="P(longer than k)",
        xlim=(0, slots),
        ylim=(0, 1.02),
        title=f"expected length {mean:.1f}, {survival[-1]:.1%} beyond {slots} slots",
    )
    return ax
