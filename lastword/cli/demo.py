"""`lastword demo`: the main job, start to end, in a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def demo(
    model: Annotated[
        Optional[list[str]],
        typer.Option("--model", "-m", help="Models to show; a folder without a tokenizer works."),
    ] = None,
    plot: Annotated[
        Optional[Path], typer.Option(help="Write the first model's curve as a picture.")
    ] = None,
) -> None:
    """Predict a length, decode on the fixed canvas and on the predicted one, and compare.

    Examples:

      lastword demo

      lastword demo --model my/checkpoint --plot curve.png
    """
    from rich.console import Console

    from lastword.cli.showcase import showcase
    from lastword.survival import save_lengths

    console = Console()
    for place, name in enumerate(model or ["toy"]):
        lengths = showcase(name, console)
        if plot is not None and place == 0:
            save_lengths(lengths, plot)
            console.print(f"wrote {plot}")
