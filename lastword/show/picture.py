"""Figures in the one style: made, labelled where their lines end, and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.errors import ExtraError, SettingError
from lastword.outside.files import check_target, write
from lastword.show.style import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
DPI = 150
LETTER = 4.7  # points: how wide one of a small name is
# Where a name may stand beside its point: to the right, above it, and so on.
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def styled() -> AbstractContextManager[None]:
    """What is drawn inside has the one style, whatever style is set outside."""
    return matplotlib_of().rc_context(STYLE)


def new_figure(width: int | float, height: int | float) -> Figure:
    """A figure of so many inches that no window shows and nobody has to close."""
    return matplotlib_of().figure.Figure(figsize=(width, height), layout="constrained")


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


def name_lines(
    ax: Axes, names: Iterable[tuple[str, str]], *, right: float = 0.99, top: float = 0.98
) -> None:
    """Names of lines, each in its colour, one below the other: where an axis has room for them."""
    for line, (name, colour) in enumerate(names):
        ax.annotate(
            name, (right, top), (0, -13 * line), xycoords="axes fraction", fontsize="small",
            textcoords="offset points", color=colour, ha="right", va="top",
        )  # fmt: skip


def name_points(
    ax: Axes, points: Mapping[str, tuple[float, float]], colours: Sequence[str]
) -> None:
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
            (right, up): _Box.around(
                x + right * (wide / 2 + 10), y + up * (high / 2 + 7), wide, high
            )
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
    matplotlib_of()
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


def matplotlib_of() -> Any:
    """The library, or an error that says how to install it."""
    try:
        import matplotlib.figure
        import matplotlib.pyplot
    except ImportError as missing:
        raise ExtraError(
            "plotting needs matplotlib, which is not installed; "
            "install it with: pip install 'lastword[plot]'"
        ) from missing
    return matplotlib
