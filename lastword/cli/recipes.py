"""`lastword recipes`: recipes by name, and every part, its settings, what it costs and where it is from."""

from __future__ import annotations


def recipes() -> None:
    """List the recipes that have a name, and every part one can be made of.

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

    from lastword.recipe.recipe import Recipe
    from lastword.recipe.registry import DEFAULT, PARTS, RECIPES, SHORTHANDS
    from lastword.recipe.text import as_text

    def described(cls: Any) -> Text:
        settings = [f"{f.name}={as_text(f.default)}" for f in dataclasses.fields(cls)]
        return Text.assemble(
            (inspect.getdoc(cls) or "").splitlines()[0],
            (f"\n{', '.join(settings)}" if settings else "", "green"),
            (f"\nprice: {cls.cost_summary}", "dim"),
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

    def listed(title: str, rows: dict[str, Text]) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.title, table.title_justify, table.title_style = title, "left", "bold"
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for name, words in rows.items():
            table.add_row(name, words)
        return table

    def in_whole(name: str) -> Text:
        return Text.assemble(
            RECIPES[name].description,
            (" The default." if name == DEFAULT else "", "bold"),
            (f"\n{Recipe.named(name).label()}\n", "green"),
            overflow="fold",
        )

    console = Console()
    console.print(listed("recipe", {name: in_whole(name) for name in RECIPES}))
    for axis, parts in PARTS.items():
        rows = {name: described(cls) for name, cls in parts.items()}
        short = {name: spelled_out(made) for name, made in SHORTHANDS.get(axis, {}).items()}
        console.print(listed(axis, rows | short))
