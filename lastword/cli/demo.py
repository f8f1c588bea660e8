"""`lastword demo`: the main job, start to end, in less than a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.options import DEFAULT_MODEL, path_option


def demo(
    model: Annotated[
        Optional[list[str]],
        typer.Option("--model", "-m", help="Models to show; a folder without a tokenizer works."),
    ] = None,
    family: Annotated[
        Optional[list[str]],
        typer.Option("--family", "-f", help="Task families to show; by default all five."),
    ] = None,
    pace: Annotated[
        float, typer.Option(help="Tokens a pass. Two fit five prompts into a minute on two cores.")
    ] = 2.0,
    plot: Annotated[Optional[Path], path_option("Write the first model's curves as a picture.")] = None,
) -> None:
    """Predict a length, decode on the fixed canvas and on the predicted one, and compare.

    An embedded model answers a held-out prompt of each task family, and its answers are checked.

    Examples:

      lastword demo

      lastword demo --model tiny-dream-instruct --family algebra

      lastword demo --family algebra --family reasoning --pace 4 --plot curves.png
    """
    from rich.console import Console

    from lastword.cli.showcase import check_families, showcase
    from lastword.survival.plot import save_rows
    from lastword.viz.figures import check_picture

    names = model or [DEFAULT_MODEL]
    check_families(names, family)
    if plot is not None:
        check_picture(plot)
    console = Console()
    for place, name in enumerate(names):
        lengths, titles, truths = showcase(name, console, family, pace)
        if plot is not None and place == 0:
            save_rows(lengths, titles, plot, truths=truths)
            console.print(f"wrote {plot}")
