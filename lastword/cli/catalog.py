"""`lastword models` and `recipes`: list what has a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from lastword.cli import options

if TYPE_CHECKING:
    from lastword.models.registry import KnownModel


def models(as_json: options.Json = False) -> None:
    """List the models that go by a name: those that come along, and checkpoints of the hub.

    Nothing is fetched. Any folder in the format of LLaDA or Dream, and any other hub name of one, can be
    given to --model as well.

    Examples:

      lastword models

      lastword models --json
    """
    from dataclasses import asdict

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from lastword.models.registry import known_models

    found = list(known_models())
    if as_json:
        listed = [asdict(one) | {"download_bytes": one.download_bytes} for one in found]
        typer.echo(json.dumps({"models": listed}))
        return
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", no_wrap=True, style="cyan")
    for name in ("weights", "slots", "chat", "here"):
        table.add_column(name, no_wrap=True, justify="right" if name in NUMBERS else "left")
    for place, one in enumerate(found):
        table.add_row(
            one.name,
            _count(one.parameters),
            "" if one.default_max_new_tokens is None else str(one.default_max_new_tokens),
            "yes" if one.chat else "",
            where(one),
            end_section=place + 1 < len(found) and found[place + 1].source != one.source,
        )
    console.print(table)
    for one in found:
        if one.error:
            typer.echo(f"lastword: {one.name}: {one.error}", err=True)
    typer.echo('Ask one: lastword generate "Solve for n: 4n + 3 = 35." --model NAME')
    typer.echo("(those marked chat answer best with --chat)")


NUMBERS = ("weights", "slots")


def where(model: KnownModel) -> str:
    """Is it here, and what would it take?"""
    if model.local == "no":
        return f"{_size(model.download_bytes)} to fetch"
    if model.local == "partial":
        return f"in part, {_size(model.local_bytes)}"
    return f"yes, {_size(model.local_bytes)}" if model.local_bytes else "yes"


def _count(parameters: int) -> str:
    if not parameters:
        return "none"
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _size(size: int) -> str:
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def recipes() -> None:
    """List the recipes that have a name, and every part one can be made of.

    A part is written name:first-setting,setting=value on the command line: fixed:256,
    survival:512,estimate=quantile:0.9, most-confident:timesteps:2; a part inside another that has
    several settings goes in brackets: 'stop-at-end:(survival:512,interpretation=auto)'. default:512 is
    the default length policy on at most 512 slots instead of the model's limit. Parts that do not go
    together are refused with the reason and what to use instead.
    """
    import dataclasses
    import inspect
    from typing import Any

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lastword.recipe.recipe import Recipe
    from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
    from lastword.recipe.text import to_text

    def described(cls: Any) -> Text:
        settings = [f"{f.name}={to_text(f.default)}" for f in dataclasses.fields(cls)]
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
            (f"\nshort for {to_text(shorthand())}\n", "dim"),
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
            (" The default." if name == DEFAULT_RECIPE else "", "bold"),
            (f"\n{Recipe.named(name).label()}\n", "green"),
            overflow="fold",
        )

    console = Console()
    console.print(listed("recipe", {name: in_whole(name) for name in RECIPES}))
    for axis, parts in PARTS.items():
        rows = {name: described(cls) for name, cls in parts.items()}
        short = {name: spelled_out(made) for name, made in SHORTHANDS.get(axis, {}).items()}
        console.print(listed(axis, rows | short))
