"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, TextIO

import typer

from lastword.cli.calibrate import calibrate
from lastword.cli.demo import demo
from lastword.cli.drift import drift
from lastword.cli.evaluate import evaluate
from lastword.cli.generate import generate
from lastword.cli.predict import predict
from lastword.cli.recipes import recipes
from lastword.cli.tables import tables
from lastword.errors import LastwordError
from lastword.version import __version__

app = typer.Typer(
    name="lastword",
    help="Know how long a diffusion language model's answer will be before it writes it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 130 interrupted, 141 reader gone."""

    @functools.wraps(command)
    def reported(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except LastwordError as refused:
            typer.echo(f"lastword: {refused}", err=True)
            raise typer.Exit(1) from refused
        except KeyboardInterrupt as stopped:
            typer.echo("lastword: interrupted", err=True)
            raise typer.Exit(130) from stopped
        except BrokenPipeError as gone:
            # The reader left (`| head`): point stdout elsewhere so that its flush at exit is quiet.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from gone

    return reported


COMMANDS: dict[str, Callable[..., None]] = {
    "predict": predict,
    "generate": generate,
    "eval": evaluate,
    "calibrate": calibrate,
    "drift": drift,
    "tables": tables,
    "recipes": recipes,
    "demo": demo,
}
for name, command in COMMANDS.items():
    app.command(name)(reporting(command))


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Know how long a diffusion language model's answer will be before it writes it."""


def main() -> None:
    """Entry point of the `lastword` command."""
    warnings.showwarning = _warn
    app()


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line of ours, without where in the code it comes from."""
    typer.echo(f"lastword: {message}", err=True)
