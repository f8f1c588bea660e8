"""Figures of survival curves (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastword.errors import SettingError
from lastword.survival.distribution import LengthDistribution
from lastword.validation import check_list, check_type
from lastword.viz.figures import SURVIVAL_SIZE, new_figure, save, styled


def save_lengths(lengths: LengthDistribution, path: Path | str) -> None:
    """Draw the survival curve of one prompt into a file; its suffix sets the format (PNG, SVG, PDF)."""
    check_type("save_lengths", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    with styled():
        figure = new_figure(*SURVIVAL_SIZE)
        lengths.plot(figure.add_subplot())
    save(figure, path)


def save_rows(
    lengths: LengthDistribution,
    titles: Sequence[str],
    path: Path | str,
    *,
    truths: Sequence[int | float | None] | None = None,
) -> None:
    """Draw the survival curves of all rows into one file, one below the other; `truths` are the real lengths."""
    check_type("save_rows", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    truths = [None] * len(lengths) if truths is None else truths
    for name, values in (("titles", titles), ("truths", truths)):
        check_list("save_rows", name, values, f"a list of {name}, one per row")
        if len(values) != len(lengths):
            raise SettingError(f"{len(values)} {name} were given for {len(lengths)} rows; give one per row")
    with styled():
        figure = new_figure(SURVIVAL_SIZE[0], 2.2 * len(titles))
        axes = figure.subplots(len(titles), squeeze=False)[:, 0]
        for row, (title, truth, ax) in enumerate(zip(titles, truths, axes)):
            lengths.row(row).plot(ax, truth=truth)
            ax.set_title(f"{title}: {ax.get_title(loc='left')}")
    save(figure, path)
