"""Tests of the labels in figures: they do not overlap, and they stay inside the axes."""

from itertools import combinations

import matplotlib as mpl

mpl.use("Agg")

from benchmarks.labels import label_lines, label_points
from benchmarks.scale.picture import LineEnd, label_ends
from lastword.viz.figures import INK, new_figure


def test_labels_of_lines_are_below_each_other():
    ax = new_figure(3, 2).add_subplot()
    ends = [LineEnd(2.0, "b", INK), LineEnd(1.9, "a", INK), LineEnd(-4.0, "c", INK)]
    label_ends(ax, 1.0, ends, 0.5)
    assert {t.get_text(): t.get_position()[1] for t in ax.texts} == {"c": -4.0, "a": 1.9, "b": 2.4}
    label_lines(ax, [("d", INK), ("e", INK)])
    assert [text.get_text() for text in ax.texts[-2:]] == ["d", "e"]


def test_labels_of_points_do_not_overlap_and_stay_inside():
    figure = new_figure(4, 3)
    ax = figure.add_subplot(xlim=(0, 1), ylim=(0, 1))
    points = {f"point {n}": (0.5 + 0.02 * n, 0.5) for n in range(4)} | {"corner": (0.99, 0.99)}
    label_points(ax, points, [INK] * 5)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert [text.get_text() for text in ax.texts] == [*points]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for box in boxes:
        assert ax.bbox.x0 <= box.x0
        assert box.x1 <= ax.bbox.x1
        assert box.y1 <= ax.bbox.y1
