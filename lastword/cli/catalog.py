"""`lastword models` and `recipes`: list the models, recipes and parts of recipes that have a name."""

from __future__ import annotations

import difflib
import inspect
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

import lastword
from lastword.cli import options
from lastword.cli.console import print_markdown
from lastword.errors import RecipeError

if TYPE_CHECKING:
    from lastword.models.registry import KnownModel


def models(as_json: options.Json = False) -> None:
    """List the embedded models, and known checkpoints of the Hugging Face hub.

    Nothing is downloaded. --model also accepts other checkpoint folders and hub names, if the checkpoint has the format
    of LLaDA or Dream.

    Examples:

        lastword models
        lastword models --json
    """
    from dataclasses import asdict

    from lastword.models.registry import known_models

    known = list(known_models())
    if as_json:
        data = [asdict(model) | {"download_bytes": model.download_bytes} for model in known]
        typer.echo(json.dumps({"models": data}))
        return
    rows = ["| model | weights | slots | chat | here |", "|---|---:|---:|---|---|"]
    for model in known:
        size, slots = model.parameters, model.default_max_new_tokens or ""
        weights = "none" if not size else f"{size / 1e9:.1f}B" if size >= 1e9 else f"{size / 1e6:.1f}M"
        rows.append(f"| {model.name} | {weights} | {slots} | {'yes' * model.chat} | {location(model)} |")
    print_markdown("\n".join(rows))
    for model in known:
        if model.error:
            typer.echo(f"lastword: {model.name}: {model.error}", err=True)
    typer.echo('\nUse one: lastword generate "Solve for n: 4n + 3 = 35." --model NAME')


def location(model: KnownModel) -> str:
    """Return a text that says whether the model is on this machine, with its size."""
    size = model.download_bytes if model.local == "no" else model.local_bytes
    words = f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    if model.local == "no":
        return f"{words} to fetch"
    if model.local == "partial":
        return f"in part, {words}"
    return f"yes, {words}" if size else "yes"


def recipes(
    name: Annotated[str | None, Argument(help="Describe this recipe or part only.")] = None,
    import_modules: options.Imports = None,
) -> None:
    """List the named recipes and all parts of recipes, or describe one of them.

    On the command line, write a part as name:first-setting,setting=value: fixed:256,
    survival:512,estimate=quantile:0.9, most-confident:timesteps:2. If a setting is a part with several settings, put it
    in brackets: 'stop-at-end:(survival:512,interpretation=auto)'. default:512 is the default length policy with at most
    512 slots. Parts that cannot be combined are rejected, with the reason and an alternative.

    Examples:

        lastword recipes
        lastword recipes fast
        lastword recipes threshold
    """
    from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
    from lastword.recipe.text import to_text

    if name is not None:
        print_markdown(_describe(name))
        return
    lines = ["**recipe**", ""]
    for name, recipe in RECIPES.items():
        default = " The default." if name == DEFAULT_RECIPE else ""
        lines.append(f"- `{name}`: {recipe.description}{default} `{lastword.Recipe.named(name).label()}`")
    for axis, parts in PARTS.items():
        lines += ["", f"**{axis}**", ""]
        for name, part in parts.items():
            cost = f" Cost: {part.cost_summary}." if part.cost_summary else ""
            lines.append(f"- `{name}`: {_summary(part)}{_settings(part)}{cost} Source: {part.source}.")
        for name, shorthand in SHORTHANDS.get(axis, {}).items():
            lines.append(f"- `{name}`: {_summary(shorthand)}{_settings(shorthand)} Short for `{to_text(shorthand())}`.")
    print_markdown("\n".join(lines))


def _summary(part: Any) -> str:
    """Return the first line of the documentation of a part."""
    return _documentation(part).splitlines()[0]


def _documentation(part: Any) -> str:
    """Return a docstring without its doctest; that of a function without its verb."""
    text = inspect.cleandoc(part.__doc__ or "").partition("\n>>>")[0].removeprefix("Return ")
    return text[:1].upper() + text[1:]


def _settings(part: Any) -> str:
    """Return a sentence with the settings of a part and their defaults, or empty text."""
    from lastword.recipe.text import to_text

    parameters = inspect.signature(part).parameters.values()
    settings = ", ".join(f"{parameter.name}={to_text(parameter.default)}" for parameter in parameters)
    return f" Settings: `{settings}`." if settings else ""


def _describe(name: str) -> str:
    """Return Markdown that describes the recipe or the parts of this name; raise RecipeError if there is none."""
    from lastword.recipe.registry import PARTS, RECIPES, SHORTHANDS
    from lastword.recipe.resolve import default_block
    from lastword.recipe.text import to_text

    lines: list[str] = []
    if name in RECIPES:
        recipe = lastword.Recipe.named(name)
        lines = [f"**{name}**: {RECIPES[name].description}", "", "| part | value | what it does |", "|---|---|---|"]
        for axis in ("length", "unmask", "commit", "cache", "sampling"):
            part = getattr(recipe, axis)
            lines.append(f"| {axis} | {to_text(part)} | {_summary(part)} |")
        block = "one block for the whole answer" if default_block(recipe) is None else "slots per block"
        lines += [f"| block | {default_block(recipe) or 'none'} | {block} |", ""]
        lines.append(f"Use it: `--recipe {name}`, or `recipe={name!r}` in Python. Options like `--unmask` change it.")
    for axis, named in PARTS.items():
        parts: dict[str, Any] = {**named, **SHORTHANDS.get(axis, {})}
        if (part := parts.get(name)) is not None:
            lines += [""] if lines else []
            lines += [f"**{name}** ({axis}): {_documentation(part)}", "", _settings(part).strip()]
            if name in PARTS[axis]:
                lines += ["", f"Cost: {part.cost_summary or 'nothing'}. Source: {part.source}."]
    if not lines:
        known = [*RECIPES, *(part for parts in PARTS.values() for part in parts)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`lastword recipes` lists all"
        raise RecipeError(f"there is no recipe or part called {name!r}; {hint}")
    return "\n".join(lines)
