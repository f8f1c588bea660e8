"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys

import typer

from lastword.cli.demo import demo
from lastword.cli.generate import generate
from lastword.cli.predict import predict
from lastword.cli.recipes import recipes
from lastword.errors import LastwordError
from lastword.version import __version__

app = typer.Typer(
    name="lastword",
    help="Know how long a diffusion language model's answer will be before it writes it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (predict, generate, recipes, demo):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """Know how long a diffusion language model's answer will be before it writes it."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 130 interrupted."""
    try:
        app()
    except LastwordError as refused:
        typer.echo(f"lastword: {refused}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("lastword: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader left (`| head`): point stdout elsewhere so that its flush at exit is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
