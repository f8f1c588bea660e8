"""The `lastword` program: its commands, and how they are declared, run and ended.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import typer

from lastword.cli.batch import batch, calibrate
from lastword.cli.catalog import models, recipes
from lastword.cli.chat import chat
from lastword.cli.errors import EXIT_CODES, THREADS, choose_threads, exit_code, flush_streams, prepare_streams, report
from lastword.cli.evaluate import bench, drift, evaluate, tables
from lastword.cli.generate import demo, generate, predict
from lastword.cli.serve import serve
from lastword.errors import SettingError
from lastword.version import __version__

__all__ = ["COMMANDS", "PANELS", "app", "main"]

Command = Callable[..., None]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

app = typer.Typer(
    name="lastword",
    help="Know how long a diffusion language model's answer will be before it writes it.",
    epilog=f"Begin with: lastword demo\n\n{THREADS}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def as_command(function: Command) -> Command:
    """Return a command as typer takes it: option groups are expanded, errors become exit codes.

    A parameter whose type is a dataclass stands for the options that are the fields of that dataclass.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if group := groups.get(parameter.name):
            types = get_type_hints(group, include_extras=True)
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
                for field in fields(group)
            ]
        else:
            annotation = hints[parameter.name]
            parameters.append(parameter.replace(annotation=annotation, kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def run(debug: bool, **values: Any) -> None:
        try:
            _check_folder()
            _check_empty(values)
            choose_threads(values)
            grouped = {
                name: group(**{field.name: values.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            function(**values, **grouped)
        except (Exception, KeyboardInterrupt) as error:
            debug = debug or sys.argv[1:2] == ["--debug"]  # the option may precede the command
            raise typer.Exit(report(error, debug=debug)) from error

    parameters.append(Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=Debug))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:  # torch would end the process with its own message
        raise SettingError("the current folder does not exist any more; change to another one") from error


def _check_empty(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name != "prompt" and (value == "" or (isinstance(value, list) and "" in value)):
            option = f"--{name.replace('_', '-')}"
            raise SettingError(f"{option} has an empty value; give it a value or leave it out")


# In the order in which a new user needs them.
PANELS: dict[str, dict[str, Command]] = {
    "A first answer": {"demo": demo, "generate": generate, "predict": predict, "chat": chat, "serve": serve},
    "Many answers, and how good they are": {
        "eval": evaluate,
        "batch": batch,
        "calibrate": calibrate,
        "drift": drift,
        "tables": tables,
    },
    "Models, recipes and speed": {"models": models, "recipes": recipes, "bench": bench},
}
COMMANDS: dict[str, Command] = {}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        COMMANDS[name] = as_command(command)
        app.command(name, rich_help_panel=panel)(COMMANDS[name])


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Debug = False,
) -> None: ...


def main() -> None:
    """Run the `lastword` program and exit."""
    try:
        prepare_streams()
        app()
        code = 0
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        code = report(error, debug="--debug" in sys.argv)
    sys.exit(flush_streams(code))
