"""One plot style for all figures (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
INK, SOFT, FAINT = "#1D2226", "#5B646C", "#DCDFE2"  # text, what stands behind it, grids
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER)

STYLE: dict[str, object] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 10,
    "text.parse_math": False,  # a name may hold a dollar
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
    "svg.hashsalt": "lastword",  # without random names, the same numbers make the same file
}


ENDINGS = (".png", ".svg", ".pdf")
DPI = 150
LETTER = 4.7  # points: how wide one of a small name is
# Where a name may stand beside its point: to the right, above it, and so on.
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def styled() -> AbstractContextManager[None]:
    """What is drawn inside has the one style, whatever style is set outside."""
    return import_matplotlib().rc_context(STYLE)


def new_figure(width: int | float, height: int | float) -> Figure:
    """A figure of so many inches that no window shows and nobody has to close."""
    return import_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


class End(NamedTuple):
    """Where a line ends, and what it is called."""

    height: float
    label: str
    colour: str


def name_ends(
    ax: Axes, at: int | float, ends: Iterable[End], gap: int | float, *, times: bool = False
) -> None:
    """Names beside the ends of lines, pushed apart by a gap, or by so many times on a log axis."""
    lowest = -float("inf")
    for end in sorted(ends):
        height = max(end.height, lowest)
        ax.text(at, height, end.label, color=end.colour, fontsize="small", va="center")
        lowest = height * gap if times else height + gap


def name_lines(ax: Axes, names: Iterable[tuple[str, str]], *, right: float = 0.99, top: float = 0.98) -> None:
    """Names of lines, each in its colour, one below the other: where an axis has room for them."""
    for line, (name, colour) in enumerate(names):
        ax.annotate(
            name, (right, top), (0, -13 * line), xycoords="axes fraction", fontsize="small",
            textcoords="offset points", color=colour, ha="right", va="top",
        )  # fmt: skip


def name_points(ax: Axes, points: Mapping[str, tuple[float, float]], colours: Sequence[str]) -> None:
    """Names beside points, each on the first side of its point where no other name or point is.

    Limits and scales of the axis must be set before.
    """
    figure: Any = ax.figure
    figure.draw_without_rendering()  # axes get their places
    dots = {name: ax.transData.transform(at).tolist() for name, at in points.items()}
    taken, inside = (
        [_Box.around(x, y, 9.0, 9.0) for x, y in dots.values()],
        _Box(*map(float, ax.bbox.extents)),
    )
    high = 11 * figure.dpi / 72
    for (name, at), colour in zip(points.items(), colours):
        (x, y), wide = dots[name], LETTER * len(name) * figure.dpi / 72
        boxes = {
            (right, up): _Box.around(x + right * (wide / 2 + 10), y + up * (high / 2 + 7), wide, high)
            for right, up in SIDES
        }
        free = (
            side
            for side, box in boxes.items()
            if box.within(inside) and not any(box.meets(own) for own in taken)
        )
        right, up = next(free, SIDES[0])
        taken.append(boxes[right, up])
        said = ax.annotate(
            name, at, (6 * right, 6 * up), textcoords="offset points", color=colour, fontsize="small",
            ha=("right", "center", "left")[right + 1], va=("top", "center", "bottom")[up + 1],
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
        said.set_in_layout(False)


class _Box(NamedTuple):
    left: float
    low: float
    right: float
    high: float

    @classmethod
    def around(cls, x: float, y: float, wide: float, high: float) -> _Box:
        return cls(x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)

    def within(self, other: _Box) -> bool:
        across = other.left <= self.left and self.right <= other.right
        return across and other.low <= self.low and self.high <= other.high

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.low < other.high and other.low < self.high


def check_picture(path: Path) -> None:
    """Refuse, before any work is done, a picture that could not be drawn or written after it."""
    import_matplotlib()
    _format(path)
    check_target(path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the ending chooses the format, and the same numbers make the same file."""
    dateless = {"Date": None} if _format(path) == "svg" else None
    drawn = BytesIO()
    with styled():
        figure.savefig(drawn, format=_format(path), dpi=DPI, metadata=dateless)
    write(path, drawn.getvalue())


def _format(path: Path) -> str:
    if path.suffix.lower() not in ENDINGS:
        raise SettingError(
            f"the picture {path} was asked for; give a file name that ends in {', '.join(ENDINGS)}"
        )
    return path.suffix.lower()[1:]


def import_matplotlib() -> Any:
    """The library, or an error that says how to install it."""
    try:
        import matplotlib.figure
        import matplotlib.pyplot
    except ImportError as missing:
        raise ExtraError(
            f"plotting needs matplotlib, which is not installed: {install_command('plot')}"
        ) from missing
    return matplotlib


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
            check_number("plot", name, given, minimum=0)
    if ax is not None and not hasattr(ax, "axvline"):
        raise WrongTypeError(
            f"plot(ax={short_repr(ax)}) was given; ax must be an axis of matplotlib, or None"
        )
    if ax is not None:
        return _draw(ax, survival, horizon, truth)
    # Made outside of the style: a backend that is chosen inside is half undone at its end, and a notebook
    # would show no figure after this one.
    figure = import_matplotlib().pyplot.figure(figsize=SIZE, layout="constrained", facecolor="white")
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
