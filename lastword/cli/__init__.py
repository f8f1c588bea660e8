"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lastword.cli.batch import batch
from lastword.cli.bench import bench
from lastword.cli.calibrate import calibrate
from lastword.cli.chat import chat
from lastword.cli.demo import demo
from lastword.cli.drift import drift
from lastword.cli.evaluate import evaluate
from lastword.cli.generate import generate
from lastword.cli.help import help_of
from lastword.cli.models import models
from lastword.cli.predict import predict
from lastword.cli.recipes import recipes
from lastword.cli.reporting import EXIT_CODES, carried, reporting
from lastword.cli.serve import serve
from lastword.cli.tables import tables
from lastword.cli.threads import THREADS
from lastword.version import __version__


class Reported(TyperGroup):
    """Ends as `reporting` says, errors of parsing and printing included. `--debug` may stand anywhere."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        end = words.index("--") if "--" in words else len(words)
        parsed = [word for word in words[:end] if word != "--debug"] + words[end:]
        with reporting(debug="--debug" in words[:end]):
            return super().main(parsed, *more, **named)


app = typer.Typer(
    name="lastword",
    cls=Reported,
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
        said = help_of(command.__doc__)
        app.command(name, help=said, rich_help_panel=panel)(carried(command))


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave."),
    ] = False,
    debug: Annotated[  # read before parsing, since it may stand behind a command's name as well
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """Know how long a diffusion language model's answer will be before it writes it."""


def main() -> None:
    """Entry point of the `lastword` command."""
    app()
