"""Labels of lines and points in figures, in place of legends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lastword.viz.figures import import_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Positions of a label around its point: to the right and above, in signs.
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
POINT_PIXELS = 9  # space that a label leaves around each point


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
            name, point, (0, 0), textcoords="offset points", color=colour, fontsize="small", bbox=background
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
