"""Exit codes, one-line error messages, and the number of torch threads of a command."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import typer

from lastword.embedded import EMBEDDED
from lastword.errors import LastwordError, SettingError

FEW = 1  # for the embedded models: threads wait for one another where others use the cores as well
SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
THREADS = (
    f"Threads: as many as there are cores, {FEW} for the embedded models; OMP_NUM_THREADS says otherwise."
)
UNKNOWN = "?"  # a model that may be large
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds, in so many


def limit_threads(models: Sequence[str | None], environment: dict[str, str] | None = None) -> None:
    """Choose for torch, which reads it when it is imported; what the environment says stands.

    Torch takes a thread for every core that it sees, also in a container that was given two of them, and
    also for tensors that are computed before a thread has woken up.
    """
    variables = os.environ if environment is None else environment
    if any(variables.get(name) for name in SAID):
        return
    small = all(name is None or name in (*EMBEDDED, "toy") for name in models)
    variables[SAID[0]] = str(min(cores(), FEW) if small else cores())


def cores(quota: Path = QUOTA) -> int:
    """The cores this process may use, by its affinity and by its container's share."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        spent, of = quota.read_text().split()
        return max(1, min(seen, -(-int(spent) // int(of))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or no limit ("max")
        return seen


REFUSED, UNEXPECTED, INTERRUPTED, READER_GONE = 1, 70, 130, 141
EXIT_CODES = (
    "Exit codes: 0 done; 1 refused, with the reason; 2 wrong usage; 70 an error of lastword itself; "
    "130 interrupted; 141 the reader of a pipe is gone."
)
MOST_LETTERS = 2_000  # of an error's line
WIDEST = 1_000  # columns of a terminal; rich fills as many as COLUMNS says


class Carried(BaseException):
    """An error of a command on its way past typer, which would end some of them by its own rules."""


def carried(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is given it: refused without a folder to run in, or with an empty option."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            _check_folder()
            for name, value in options.items():
                if name != "prompt" and (value == "" or (isinstance(value, list) and "" in value)):
                    option = f"--{name.replace('_', '-')}"
                    raise SettingError(f"{option} was given empty; give it a value or leave it out")
            _choose_threads(options)
            command(**options)
        except SystemExit:  # rich's, where the reader is gone
            raise
        except BaseException as error:
            raise Carried from error

    return run


@contextmanager
def reporting(*, debug: bool) -> Iterator[None]:
    """Turn whatever ends a command into an exit code; with `debug`, its traceback is printed as well."""
    code = 0
    try:
        _prepare()
        yield
        sys.stdout.flush()
    except SystemExit as left:
        # Both typer and rich make an exit code of their own of these two.
        code = left.code if isinstance(left.code, int) else 0
        for cause in _chain(left):
            code = {BrokenPipeError: READER_GONE, KeyboardInterrupt: INTERRUPTED}.get(type(cause), code)
    except BaseException as error:
        error = error.__cause__ if isinstance(error, Carried) and error.__cause__ else error
        code, line = outcome(error)
        with suppress(OSError, ValueError):  # a standard error that is full or closed says nothing
            if debug:
                traceback.print_exception(error)
            if line:
                typer.echo(f"lastword: {_bounded(line)}", err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or REFUSED
            with suppress(OSError, ValueError):  # or the interpreter would stumble over the rest
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


@contextmanager
def resumable() -> Iterator[None]:
    """Around what goes on where it was: whoever interrupts it is told so."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            "interrupted; what was answered is kept: give the same command again to go on"
        ) from stopped


def outcome(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and the line that tells of it."""
    said = " ".join(str(error).split())
    if isinstance(error, LastwordError):
        return REFUSED, str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, str(error) or "interrupted"
    if isinstance(error, BrokenPipeError):
        return READER_GONE, ""
    if isinstance(error, OSError):
        return REFUSED, (
            f"something could not be read or written ({said}); check the path, its rights and the space on "
            "the disk, and give the same command again"
        )
    if isinstance(error, EOFError):
        return REFUSED, f"a file ends too early ({said}); make or fetch it again"
    if isinstance(error, UnicodeError):
        return REFUSED, f"there is text in another encoding than was expected ({said}); give UTF-8"
    if isinstance(error, RecursionError):
        return REFUSED, f"what was given is nested too deeply ({said}); give it flatter"
    # Torch's own error of memory is a RuntimeError, and not worth importing torch for.
    if isinstance(error, MemoryError) or "tried to allocate" in said.lower():
        return REFUSED, f"the memory is not enough ({said}); give fewer rows or a lower limit"
    return UNEXPECTED, (
        f"unexpected {type(error).__name__} ({said}): this is an error of lastword; run again with --debug "
        "for the traceback, and please report it"
    )


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line of ours, without where in the code it comes from."""
    typer.echo(f"lastword: {message}", err=True)


def _prepare() -> None:
    """Streams that take whatever is printed, and warnings as lines of ours."""
    warnings.showwarning = warn
    for number in range(3):  # a file of the user's must not be opened as one of these
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and not 0 < int(columns[:9]) <= WIDEST:
        del os.environ["COLUMNS"]
    if sys.stdout is None:
        raise SettingError(
            "standard output is closed, so nothing could be printed; send it to a file or to /dev/null"
        )


def _bounded(line: str) -> str:
    """A line that does not fill the screen, whatever was given: its beginning and its end."""
    half = MOST_LETTERS // 2
    return line if len(line) <= MOST_LETTERS else f"{line[:half]} ... {line[-half:]}"


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as gone:  # torch would end the process in its own words
        raise SettingError("the current folder is gone; change to another") from gone


def _choose_threads(options: Mapping[str, Any]) -> None:
    """Before torch is imported; a cluster chooses for its own."""
    model = options.get("model")
    # A preset names its model itself, and a bench measures what the machine can do.
    unnamed = UNKNOWN if options.get("preset") or "models" in options else None
    if options.get("engine") != "ray":
        limit_threads(model if isinstance(model, list) else [model or unnamed])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What an exception was raised in place of, and that in turn."""
    earlier = error.__context__
    while earlier is not None:
        yield earlier
        earlier = earlier.__context__
