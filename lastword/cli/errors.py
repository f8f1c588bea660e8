"""Exit codes, one-line error messages, and the number of torch threads of a command."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from lastword.embedded import EMBEDDED
from lastword.errors import FailedSamplesError, LastwordError, SettingError

REFUSED, SOME_FAILED, ALL_FAILED, UNEXPECTED, INTERRUPTED, READER_GONE, TERMINATED = 1, 3, 4, 70, 130, 141, 143
EXIT_CODES = (
    "Exit codes: 0 done; 1 rejected or failed, with the reason on standard error; 2 wrong usage; 3 some prompts failed,"
    " 4 all failed; 70 a bug in lastword; 130 interrupted; 141 the reader of the pipe has exited; 143 terminated."
)
IMPORT_SECONDS = 0.05  # until a signal that arrived during an import is sent again
MAX_MESSAGE = 2_000  # characters of an error message
MAX_COLUMNS = 1_000  # rich pads its output to the width in the environment variable COLUMNS

# The message for an error of the system, by its class; `{}` is replaced by the error's own message.
ADVICE: dict[type[Exception], str] = {
    OSError: "a file could not be read or written ({}); check the path, the permissions and the free space "
    "on the disk, then repeat the command",
    EOFError: "a file ends too early ({}); make or download it again",
    UnicodeError: "a text is not in the expected encoding ({}); use UTF-8",
    RecursionError: "the input is nested too deeply ({}); use fewer levels",
    MemoryError: "there is not enough memory ({}); use fewer rows or a lower limit",
}


class TerminatedError(KeyboardInterrupt):
    """The interruption by SIGTERM, which has the effect of Ctrl-C."""


def handle_signals() -> None:
    """Raise KeyboardInterrupt at SIGINT and TerminatedError at SIGTERM, but only after a running import.

    Extension modules whose import is interrupted cannot be imported again, or ignore the signal.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                again = threading.Timer(IMPORT_SECONDS, os.kill, (os.getpid(), number))
                again.daemon = True
                again.start()
                return
            frame = frame.f_back
        raise TerminatedError("terminated") if number == signal.SIGTERM else KeyboardInterrupt

    with suppress(ValueError):  # in another thread, where no handler can be set
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # as in a background job
                signal.signal(number, interrupt)


def outcome(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its one-line message."""
    message = " ".join(str(error).split())
    if isinstance(error, FailedSamplesError):
        return ALL_FAILED if error.all_failed else SOME_FAILED, str(error)
    if isinstance(error, LastwordError):
        return REFUSED, str(error)
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, TerminatedError) else INTERRUPTED, str(error) or "interrupted"
    if isinstance(error, BrokenPipeError):
        return READER_GONE, ""
    if isinstance(error, RuntimeError) and "tried to allocate" in message.lower():  # torch is out of memory
        return REFUSED, ADVICE[MemoryError].format(message)
    for kind, advice in ADVICE.items():
        if isinstance(error, kind):
            return REFUSED, advice.format(message)
    line = f"unexpected {type(error).__name__} ({message}): this is an error of lastword; please run again with "
    return UNEXPECTED, f"{line}--debug and report the traceback"


def report(error: BaseException, *, debug: bool) -> int:
    """Print an error on standard error, its traceback first if `debug`, and return its exit code."""
    code, line = outcome(error)
    if len(line) > MAX_MESSAGE:
        line = f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"
    with suppress(OSError, ValueError):  # standard error may be full or closed
        if debug:
            traceback.print_exception(error)
        if line:
            typer.echo(f"lastword: {line}", err=True)
    return code


@contextmanager
def resumable() -> Iterator[None]:
    """Add to the message of a KeyboardInterrupt in the block that the same command resumes the run."""
    try:
        yield
    except KeyboardInterrupt as error:
        advice = "finished answers are saved: repeat the command to resume"
        raise type(error)(f"{str(error) or 'interrupted'}; {advice}") from error


def prepare_streams() -> None:
    """Make the standard streams accept any text, and let warnings be printed without their code location."""
    warnings.showwarning = lambda message, *_: typer.echo(f"lastword: {message}", err=True)
    for number in range(3):  # the next file that is opened would take a closed stream's number
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
    if columns.isdigit() and not 0 < int(columns[:9]) <= MAX_COLUMNS:
        del os.environ["COLUMNS"]
    if sys.stdout is None:
        raise SettingError("standard output is closed; redirect it to a file or to /dev/null")


def flush_streams(code: int) -> int:
    """Flush the standard streams and return the exit code: `code`, or REFUSED if it was 0 and output was lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or REFUSED
            with suppress(OSError, ValueError):  # otherwise the flush when Python exits fails, too
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def exit_code(error: SystemExit) -> int:
    """Return the exit code of `error`, or READER_GONE for a closed pipe, for which typer and rich exit with 1."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, typer.Exit):
        if isinstance(cause, BrokenPipeError):
            return READER_GONE
        if isinstance(cause, TerminatedError):  # typer exits with 130, without a message
            return report(cause, debug=False)
        cause = cause.__context__
    return error.code if isinstance(error.code, int) else 0


THREADS = "Threads of torch: --threads or OMP_NUM_THREADS; else 1 for the embedded models, one per core for others."
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
TOPOLOGY = Path("/sys/devices/system/cpu")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # the cgroup's limit: "MICROSECONDS PERIOD", or "max PERIOD"


def choose_threads(options: Mapping[str, Any]) -> None:
    """Set the number of torch threads (see THREADS) from the options of a command, before torch is imported."""
    is_worker = options.get("engine") not in (None, "local")
    if options.get("threads") and not is_worker:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(options["threads"])))
        return
    if options.get("engine") == "ray" or any(map(os.environ.get, THREAD_VARIABLES)):
        return  # Ray or the user sets the number
    model = options.get("model")
    names = model if isinstance(model, list) else [model]
    # A preset names a model of any size, and `lastword bench` (option --models) measures the whole machine.
    is_other = "models" in options or (model is None and options.get("preset"))
    is_small = not is_other and all(name in (None, "toy", *EMBEDDED) for name in names)
    os.environ[THREAD_VARIABLES[0]] = "1" if is_small else str(available_cores())


def available_cores(quota: Path = CPU_QUOTA, topology: Path = TOPOLOGY) -> int:
    """Return the number of physical cores that CPU affinity and the container's quota allow this process.

    Matrix products keep a core busy, so the second hardware thread of a core makes them slower.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    try:
        cores = len({(topology / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in cpus})
    except OSError:  # not Linux
        cores = len(cpus)
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(cores, -(-int(microseconds) // int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or no limit
        return cores
