"""The `lastword` program: its commands, their help texts and its exit codes.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lastword.cli.batch import batch
from lastword.cli.bench import bench
from lastword.cli.calibrate import calibrate
from lastword.cli.catalog import models, recipes
from lastword.cli.chat import chat
from lastword.cli.errors import EXIT_CODES, THREADS, carried, reporting
from lastword.cli.evaluate import drift, evaluate, tables
from lastword.cli.generate import demo, generate, predict
from lastword.cli.serve import serve
from lastword.version import __version__

WIDTH = 76  # characters of an example; a terminal has 80 columns, and two of them are blank


def help_of(docstring: str | None) -> str:
    """Return a docstring as typer needs it: one line per paragraph, and examples without blank lines between.

    Brackets are escaped, because rich would interpret their content as a style.
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    text = ""
    for before, paragraph in zip(["", *paragraphs], paragraphs):
        if _is_example(paragraph):
            between = "\n" if _is_example(before) else "\n\n"
            text += between + _wrapped(" ".join(paragraph.replace("\\\n", " ").split()))
        else:
            text += ("\n\n" if text else "") + " ".join(paragraph.split())
    return text.replace("[", "\\[")


def _is_example(paragraph: str) -> bool:
    return paragraph.startswith("  ")


def _wrapped(command: str) -> str:
    """Break a command before options where it is too long for one line."""
    lines = [""]
    for part in re.split(r" (?=--?[a-z])", command):
        longer = f"{lines[-1]} {part}" if lines[-1] else part
        if lines[-1] and len(longer) > WIDTH - 4:
            lines.append(part)
        else:
            lines[-1] = longer
    return "  " + " \\\n    ".join(lines)


class CommandGroup(TyperGroup):
    """The commands: every error becomes an exit code, and `--debug` may be anywhere in the command line."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        end = words.index("--") if "--" in words else len(words)
        parsed = [word for word in words[:end] if word != "--debug"] + words[end:]
        with reporting(debug="--debug" in words[:end]):
            return super().main(parsed, *more, **named)


app = typer.Typer(
    name="lastword",
    cls=CommandGroup,
    help="Know how long a diffusion language model's answer will be before it writes it.",
    epilog=f"Begin with: lastword demo\n\n{THREADS}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order in which a newcomer needs them.
PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "A first answer": {
        "demo": demo,
        "generate": generate,
        "predict": predict,
        "chat": chat,
        "serve": serve,
    },
    "Many answers, and how good they are": {
        "eval": evaluate,
        "batch": batch,
        "calibrate": calibrate,
        "drift": drift,
        "tables": tables,
    },
    "What there is": {"models": models, "recipes": recipes, "bench": bench},
}
COMMANDS = {name: command for panel in PANELS.values() for name, command in panel.items()}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, help=help_of(command.__doc__), rich_help_panel=panel)(carried(command))


def _version(requested: bool) -> bool:
    if requested:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[  # read before parsing, because it may also follow a command's name
        bool, typer.Option("--debug", help="Show the traceback of an error; may be given anywhere.")
    ] = False,
) -> None:
    """Know how long a diffusion language model's answer will be before it writes it."""


def main() -> None:
    """Run the `lastword` program."""
    app()
