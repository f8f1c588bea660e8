"""`lastword models` and `recipes`: list everything that has a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from lastword.cli import options

if TYPE_CHECKING:
    from lastword.models.registry import KnownModel


def models(as_json: options.Json = False) -> None:
    """List the models that have a name: the embedded ones, and checkpoints of the hub.

    Nothing is downloaded. --model also takes any folder in the format of LLaDA or Dream, and any other hub
    name of one.

    Examples:

        lastword models
        lastword models --json
    """
    from dataclasses import asdict

    from lastword.cli.console import print_markdown
    from lastword.models.registry import known_models

    known = list(known_models())
    if as_json:
        data = [asdict(model) | {"download_bytes": model.download_bytes} for model in known]
        typer.echo(json.dumps({"models": data}))
        return
    rows = ["| model | weights | slots | chat | here |", "|---|---:|---:|---|---|"]
    for model in known:
        slots = "" if model.default_max_new_tokens is None else str(model.default_max_new_tokens)
        cells = (model.name, _count(model.parameters), slots, "yes" if model.chat else "", location(model))
        rows.append(f"| {' | '.join(cells)} |")
    print_markdown("\n".join(rows))
    for model in known:
        if model.error:
            typer.echo(f"lastword: {model.name}: {model.error}", err=True)
    typer.echo('\nUse one: lastword generate "Solve for n: 4n + 3 = 35." --model NAME')
    typer.echo("(those with chat answer best with --chat)")


def location(model: KnownModel) -> str:
    """Return whether the model is on this machine, and its size."""
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
    """List the recipes that have a name, and every part of a recipe.

    A part is written name:first-setting,setting=value on the command line: fixed:256,
    survival:512,estimate=quantile:0.9, most-confident:timesteps:2. A part with several settings inside
    another one is written in brackets: 'stop-at-end:(survival:512,interpretation=auto)'. default:512 is
    the default length policy with at most 512 slots. Parts that cannot be combined are refused with the
    reason and an alternative.
    """
    import inspect
    from dataclasses import fields

    from lastword.cli.console import print_markdown
    from lastword.recipe.recipe import Recipe
    from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
    from lastword.recipe.text import to_text

    def summary(thing: Any) -> str:
        return (inspect.getdoc(thing) or "").splitlines()[0]

    lines = ["**recipe**", ""]
    for name, recipe in RECIPES.items():
        default = " The default." if name == DEFAULT_RECIPE else ""
        lines.append(f"- `{name}`: {recipe.description}{default} `{Recipe.named(name).label()}`")
    for axis, parts in PARTS.items():
        lines += ["", f"**{axis}**", ""]
        for name, part in parts.items():
            settings = ", ".join(f"{field.name}={to_text(field.default)}" for field in fields(part))
            listed = f" Settings: `{settings}`." if settings else ""
            cost = f" Cost: {part.cost_summary}. Source: {part.source}."
            lines.append(f"- `{name}`: {summary(part)}{listed}{cost}")
        for name, shorthand in SHORTHANDS.get(axis, {}).items():
            arguments = inspect.signature(shorthand).parameters.values()
            settings = ", ".join(f"{argument.name}={to_text(argument.default)}" for argument in arguments)
            text = f"{summary(shorthand)} Settings: `{settings}`. Short for `{to_text(shorthand())}`."
            lines.append(f"- `{name}`: {text}")
    print_markdown("\n".join(lines))
