"""The `lastword` program: its typer application, the options of each command, and the exit codes.

Large packages such as torch are imported only when a command runs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from lastword.argument_names import unknown_option
from lastword.cli.batch import batch, calibrate
from lastword.cli.catalog import models, recipes
from lastword.cli.chat import chat
from lastword.cli.errors import (
    EXIT_CODES,
    THREADS,
    choose_threads,
    exit_code,
    flush_streams,
    handle_signals,
    prepare_streams,
    report,
)
from lastword.cli.evaluate import bench, drift, evaluate, tables
from lastword.cli.generate import demo, generate, predict
from lastword.cli.serve import serve
from lastword.errors import SettingError
from lastword.version import __version__

__all__ = ["COMMANDS", "PANELS", "app", "main"]

Function = Callable[..., int | None]  # returns an exit code, or None for 0
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

app = typer.Typer(
    name="lastword",
    help="Know the length of a diffusion language model's answer before it is generated.",
    epilog=f"Begin with: lastword demo\n\n{THREADS}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@functools.cache
def _hints(owner: Function) -> dict[str, Any]:
    """Return the annotations of a function's parameters or a dataclass's fields, `Annotated` options included."""
    return get_type_hints(owner, include_extras=True)


def as_command(function: Function) -> Function:
    """Return a typer command that runs a function and turns its errors into exit codes.

    A parameter whose type is a dataclass becomes one option per field of that dataclass.
    """
    groups: dict[str, Any] = {name: hint for name, hint in _hints(function).items() if is_dataclass(hint)}

    @functools.wraps(function)
    def run(debug: bool, **values: Any) -> None:
        try:
            _check_surroundings(values)
            choose_threads(values)
            if values.get("import_modules"):
                from lastword.recipe.registry import import_modules

                import_modules(values["import_modules"])
            for name, group in groups.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            code = function(**values)
        except (Exception, KeyboardInterrupt) as error:
            debug = debug or sys.argv[1:2] == ["--debug"]  # the option may precede the command
            raise typer.Exit(report(error, debug=debug)) from error
        if code:
            raise typer.Exit(code)

    debug = Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = inspect.Signature([*_parameters(function), debug])  # type: ignore[attr-defined]
    return run


def _parameters(function: Function) -> Iterator[Parameter]:
    """Yield the parameters of a function or dataclass; one whose type is a dataclass is replaced by its fields.

    The help lists the options of a dataclass in a panel of the title `PANEL`, if the dataclass has one.
    """
    for parameter in inspect.signature(function).parameters.values():
        hint = _hints(function)[parameter.name]
        if is_dataclass(hint):
            yield from _parameters(cast(Function, hint))
        else:
            kind, option = get_args(hint)
            if isinstance(option, OptionInfo):  # arguments stay where they are
                option = copy(option)
                option.rich_help_panel = getattr(function, "PANEL", None)
            yield parameter.replace(annotation=Annotated[kind, option], kind=Parameter.KEYWORD_ONLY)


def _check_surroundings(values: dict[str, Any]) -> None:
    """Raise SettingError if the working folder was removed, or if an option has an empty value."""
    try:
        os.getcwd()
    except OSError as error:  # torch would end the process with its own message
        raise SettingError("the current folder does not exist any more; change to another one") from error
    for name, value in values.items():
        if name != "prompt" and (value == "" or (isinstance(value, list) and "" in value)):
            option = f"--{name.replace('_', '-')}"
            raise SettingError(f"{option} has an empty value; give it a value or leave it out")


class Command(TyperCommand):
    """A command whose error for an unknown option names the option to use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # of click, or of the copy of click in typer
                raise
            known = [option for parameter in self.params for option in (*parameter.opts, *parameter.secondary_opts)]
            return ctx.fail(unknown_option(str(getattr(error, "option_name", "")), known))


# The commands by panel of `lastword --help`, in the order in which a new user needs them.
PANELS: dict[str, dict[str, Function]] = {
    "Single prompts, chat and serving": {
        "demo": demo,
        "generate": generate,
        "predict": predict,
        "chat": chat,
        "serve": serve,
    },
    "Files of prompts and evaluation": {
        "eval": evaluate,
        "batch": batch,
        "calibrate": calibrate,
        "drift": drift,
        "tables": tables,
    },
    "Models, recipes and speed": {"models": models, "recipes": recipes, "bench": bench},
}
COMMANDS = {name: as_command(command) for panel in PANELS.values() for name, command in panel.items()}
for panel, names in PANELS.items():
    for name in names:
        app.command(name, cls=Command, rich_help_panel=panel)(COMMANDS[name])


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
        handle_signals()
        prepare_streams()
        app()
        code = 0
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        code = report(error, debug="--debug" in sys.argv)
    sys.exit(flush_streams(code))
