"""`lastword models`: the models that go by a name, and which of them are on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from lastword.cli.options import JsonOption

if TYPE_CHECKING:
    from lastword.models.registry import KnownModel


def models(as_json: JsonOption = False) -> None:
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
        listed = [asdict(one) | {"to_fetch": one.to_fetch} for one in found]
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
            end_section=place + 1 < len(found) and found[place + 1].home != one.home,
        )
    console.print(table)
    for one in found:
        if one.wrong:
            typer.echo(f"lastword: {one.name}: {one.wrong}", err=True)
    typer.echo('Ask one: lastword generate "Solve for n: 4n + 3 = 35." --model NAME')
    typer.echo("(those marked chat answer best with --chat)")


NUMBERS = ("weights", "slots")


def where(model: KnownModel) -> str:
    """Is it here, and what would it take?"""
    if model.here == "no":
        return f"{_size(model.to_fetch)} to fetch"
    if model.here == "part":
        return f"in part, {_size(model.size)}"
    return f"yes, {_size(model.size)}" if model.size else "yes"


def _count(parameters: int) -> str:
    if not parameters:
        return "none"
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _size(size: int) -> str:
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
