"""Plots of survival curves (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.errors import SettingError
from lastword.survival.distribution import LengthDistribution
from lastword.validation import check_list, check_type
from lastword.viz.figures import SURVIVAL_SIZE, new_figure, save, styled

if TYPE_CHECKING:
    pass


def save_lengths(lengths: LengthDistribution, path: Path) -> None:
    """Draw one prompt's curve into a file; the ending chooses the format (PNG, SVG, PDF)."""
    check_type("save_lengths", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    with styled():
        figure = new_figure(*SURVIVAL_SIZE)
        lengths.plot(figure.add_subplot())
    save(figure, path)


def save_rows(
    lengths: LengthDistribution,
    titles: Sequence[str],
    path: Path,
    *,
    truths: Sequence[int | float | None] | None = None,
) -> None:
    """Draw every row into one file, one below the other; `truths` are the lengths answers really had."""
    check_type("save_rows", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    truths = [None] * len(lengths) if truths is None else truths
    for name, given in (("titles", titles), ("truths", truths)):
        check_list("save_rows", name, given, f"a list of {name}, one a row")
        if len(given) != len(lengths):
            raise SettingError(f"{len(given)} {name} were given for {len(lengths)} rows; give one each")
    with styled():
        figure = new_figure(SURVIVAL_SIZE[0], 2.2 * len(titles))
        axes = figure.subplots(len(titles), squeeze=False)[:, 0]
        for row, (title, truth, ax) in enumerate(zip(titles, truths, axes)):
            lengths.row(row).plot(ax, truth=truth)
            ax.set_title(f"{title}: {ax.get_title(loc='left')}")
    save(figure, path)
