"""`lastword recipes`: every part, its settings, what it costs and where it comes from."""

from __future__ import annotations


def recipes() -> None:
    """List every part a recipe can be made of.

    A part is written name:first-setting,setting=value on the command line: fixed:256,
    survival:512,estimate=quantile:0.9, most-confident:timesteps:2; a part inside another that has
    several settings goes in brackets: 'stop-at-end:(survival:512,reading=auto)'. default:512 is the length
    you get without saying one, on at most 512 slots instead of the model's own limit. Parts that do not
    go together are refused with the reason and what to use instead.
    """
    import dataclasses
    import inspect
    from typing import Any

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lastword.recipe.names import PARTS, SHORTHANDS
    from lastword.recipe.text import as_text

    def described(cls: Any) -> Text:
        settings = [f"{f.name}={as_text(f.default)}" for f in dataclasses.fields(cls)]
        return Text.assemble(
            (inspect.getdoc(cls) or "").splitlines()[0],
            (f"\n{', '.join(settings)}" if settings else "", "green"),
            (f"\nprice: {cls.price}", "dim"),
            (f"\nsource: {cls.source}\n", "dim"),
        )

    def spelled_out(shorthand: Any) -> Text:
        settings = inspect.signature(shorthand).parameters.values()
        return Text.assemble(
            (inspect.getdoc(shorthand) or "").splitlines()[0],
            (f"\n{', '.join(f'{one.name}={one.default}' for one in settings)}", "green"),
            (f"\nshort for {as_text(shorthand())}\n", "dim"),
            overflow="fold",
        )

    console = Console()
    for axis, parts in PARTS.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.title, table.title_justify, table.title_style = axis, "left", "bold"
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for name, cls in parts.items():
            table.add_row(name, described(cls))
        for name, shorthand in SHORTHANDS.get(axis, {}).items():
            table.add_row(name, spelled_out(shorthand))
        console.print(table)
