"""`lastword recipes`: every part, its settings and what it is."""

from __future__ import annotations


def recipes() -> None:
    """List every part a recipe can be made of.

    A part is written name:first-setting,setting=value on the command line: fixed:256,
    survival:512,estimate=quantile:0.9, most-confident:timesteps:2.
    """
    import dataclasses
    import inspect

    from rich.console import Console
    from rich.table import Table

    from lastword.recipe import PARTS, as_text

    console = Console()
    for axis, parts in PARTS.items():
        table = Table(title=axis, title_justify="left", title_style="bold", show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        table.add_column()
        for name, cls in parts.items():
            settings = ", ".join(
                f"{field.name}={as_text(getattr(cls(), field.name))}"
                for field in dataclasses.fields(cls)
            )
            table.add_row(name, (inspect.getdoc(cls) or "").splitlines()[0], settings)
        console.print(table)
