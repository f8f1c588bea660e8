"""The one look of every figure: colours that everybody tells apart, and settings of matplotlib.

Colours are Okabe and Ito's. Lines of one figure differ in dashes or have their names beside them as well, so
that a figure can be read in grey; backgrounds are white, so that it can be read on a dark page.
"""

from __future__ import annotations

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
