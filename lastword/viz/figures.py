"""The plot style of all figures, and the plot of a survival curve (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lastword.errors import ExtraError, SettingError, WrongTypeError, install_command
from lastword.io.files import check_target, write
from lastword.validation import check_number, short_repr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


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
    "svg.hashsalt": "lastword",  # without random names: equal numbers give equal files
}

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
SURVIVAL_SIZE = (7, 3.2)  # inches
# Positions of a label around its point: to the right and above, in signs.
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
POINT_PIXELS = 9  # space that a label leaves around each point


def styled() -> AbstractContextManager[None]:
    """Return a context in which plots have this style, regardless of the current one."""
    return import_matplotlib().rc_context(STYLE)


def new_figure(width: int | float, height: int | float) -> Figure:
    """Return a figure of this size in inches that no window shows and that need not be closed."""
    return import_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def label_lines(ax: Axes, labels: Iterable[tuple[str, str]], *, right: float = 0.99, top: float = 0.98) -> None:
    """Write labels with their colours below each other at a place of the axes, in place of a legend."""
    for row, (label, colour) in enumerate(labels):
        ax.annotate(
            label,
            (right, top),
            (0, -13 * row),
            xycoords="axes fraction",
            textcoords="offset points",
            color=colour,
            fontsize="small",
            ha="right",
            va="top",
        )


def label_points(ax: Axes, points: Mapping[str, tuple[float, float]], colours: Sequence[str]) -> None:
    """Write the name of each point on the first side on which it overlaps nothing and stays inside.

    Limits and scales of the axes must be set before.
    """
    bbox = import_matplotlib().transforms.Bbox
    figure: Any = ax.figure
    figure.draw_without_rendering()  # places the axes
    centres = [ax.transData.transform(point) for point in points.values()]
    occupied = [bbox.from_bounds(x, y, 0, 0).padded(POINT_PIXELS / 2) for x, y in centres]
    for (name, point), colour in zip(points.items(), colours):
        background = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.5}
        label: Any = ax.annotate(
            name, point, textcoords="offset points", color=colour, fontsize="small", bbox=background
        )
        label.set_in_layout(False)
        for right, up in (*SIDES, SIDES[0]):
            label.xyann = (6 * right, 6 * up)
            label.set(ha=("right", "center", "left")[right + 1], va=("top", "center", "bottom")[up + 1])
            box = label.get_window_extent()
            is_inside = ax.bbox.containsx(box.x0) and ax.bbox.containsx(box.x1)
            is_inside = is_inside and ax.bbox.containsy(box.y0) and ax.bbox.containsy(box.y1)
            if is_inside and not box.count_overlaps(occupied):
                break
        occupied.append(box)


def check_picture(path: Path) -> None:
    """Raise SettingError if a picture cannot be written to this path, or ExtraError without matplotlib."""
    import_matplotlib()
    _format(path)
    check_target(path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file name; equal numbers give equal files."""
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
    """Return the module matplotlib, or raise ExtraError with the command that installs it."""
    try:
        import matplotlib.figure
        import matplotlib.pyplot
    except ImportError as error:
        command = install_command("plot")
        raise ExtraError(f"plotting needs matplotlib, which is not installed: {command}") from error
    return matplotlib


def draw_survival(
    survival: Sequence[float],
    ax: Axes | None = None,
    *,
    horizon: int | float | Tensor | None = None,
    truth: int | float | None = None,
) -> Axes:
    """Plot S(0), ..., S(T) with the horizon, by default the mean rounded up, and the true length."""
    if isinstance(horizon, Tensor) and horizon.dim() == 0:
        horizon = horizon.item()
    for name, value in (("horizon", horizon), ("truth", truth)):
        if value is not None:
            check_number("plot", name, value, minimum=0)
    if ax is not None and not hasattr(ax, "axvline"):
        raise WrongTypeError(f"plot(ax={short_repr(ax)}) was given; ax must be an axis of matplotlib, or None")
    if ax is not None:
        return _draw(ax, survival, horizon, truth)
    # The figure is made outside of the style: a backend that is selected inside would be reset at its end.
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
    # The labels are next to all marks, on the right if there is space.
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
