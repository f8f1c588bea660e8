"""Hazard, survival and horizon in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lastword.checks import check_number, check_sequence, check_type, shown
from lastword.errors import ExtraError, SettingError, WrongTypeError
from lastword.extras import install
from lastword.outside.files import check_target, write
from lastword.survival.curve import LengthDistribution
from lastword.survival.estimate import Estimate, Mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".png", ".svg", ".pdf")


def plot_lengths(
    lengths: LengthDistribution,
    *,
    row: int = 0,
    estimate: Estimate | None = None,
    truth: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw one row's survival curve, its hazard below, and where the estimate puts the horizon.

    Takes an axis and returns it; `truth` marks the length the answer really had.
    """
    check_type("plot_lengths", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    if estimate is not None:
        check_type(
            "plot_lengths", "estimate", estimate, get_args(Estimate), "an estimate, as Mean()"
        )
    if truth is not None:
        check_number("plot_lengths", "truth", truth, least=0)
    if ax is not None and not hasattr(ax, "axvline"):
        raise WrongTypeError(
            f"plot_lengths(ax={shown(ax)}) was given; ax must be an axis of matplotlib, or None"
        )
    if ax is None:
        _, ax = matplotlib_of().pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    one = lengths.row(row)
    horizon = (estimate or Mean())(one).clamp(1, one.slots).ceil().item()
    slots = range(1, one.slots + 1)

    survival = one.survival[0].tolist()
    ax.step(range(one.slots + 1), survival, where="post", color="tab:blue", label="survival S(k)")
    ax.fill_between(
        range(one.slots + 1), survival, step="post", color="tab:blue", alpha=0.15, linewidth=0
    )
    ax.step(slots, one.hazard[0].tolist(), where="mid", color="tab:orange", label="hazard h(k)")
    ax.axvline(horizon, color="tab:red", linestyle="--", label=f"horizon {horizon:.0f}")
    if truth is not None:
        ax.axvline(truth, color="black", linestyle=":", label=f"true length {truth:.0f}")
    ax.set(
        xlabel="slot k",
        ylabel="probability",
        xlim=(0, one.slots),
        ylim=(0, 1.02),
        title=f"expected length {one.mean.item():.1f}, tail S({one.slots}) = {one.tail.item():.3f}",
    )
    ax.legend(loc="center right", framealpha=0.9)
    return ax


def save_lengths(lengths: LengthDistribution, path: Path, *, row: int = 0) -> None:
    """Draw one row into a file; the ending chooses the format (PNG, SVG, PDF)."""
    figure = matplotlib_of().figure.Figure(figsize=(7, 3.5), layout="constrained")
    plot_lengths(lengths, row=row, ax=figure.add_subplot())
    save(figure, path)


def save_rows(lengths: LengthDistribution, titles: Sequence[str], path: Path) -> None:
    """Draw every row into one file, one below the other."""
    check_type("save_rows", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    check_sequence("save_rows", "titles", titles, "a list of titles, one a row")
    if len(titles) != len(lengths):
        raise SettingError(
            f"{len(titles)} titles were given for {len(lengths)} rows; give one each"
        )
    figure = matplotlib_of().figure.Figure(figsize=(7, 2.6 * len(titles)), layout="constrained")
    axes = figure.subplots(len(titles), squeeze=False)[:, 0]
    for row, (title, ax) in enumerate(zip(titles, axes)):
        plot_lengths(lengths, row=row, ax=ax)
        ax.set_title(f"{title}: {ax.get_title()}")
    save(figure, path)


def check_picture(path: Path) -> None:
    """Refuse, before any work is done, a picture that could not be drawn or written after it."""
    matplotlib_of()
    _format(path)
    check_target(path)


def save(figure: Any, path: Path) -> None:
    """Write a figure; the ending chooses the format."""
    # Without a date and random names, the same numbers make the same file.
    dateless = {"Date": None} if _format(path) == "svg" else None
    drawn = BytesIO()
    with matplotlib_of().rc_context({"svg.hashsalt": "lastword"}):
        figure.savefig(drawn, format=_format(path), dpi=150, metadata=dateless)
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
            f"plotting needs matplotlib, which is not installed: {install('plot')}"
        ) from missing
    return matplotlib
