"""Which sandbox: the strongest that works here, found by trying it."""

from __future__ import annotations

import errno
import os

from lastword.errors import SandboxError
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Verdict
from lastword.sandbox.runner import run_one

UNSAFE = "LASTWORD_UNSAFE_CODE"
# Reads the standard library, writes to the working folder: what any program may expect.
PROBE = "import json, tempfile\ntempfile.TemporaryFile().write(b'1')"
PATIENCE = (10.0, 30.0)  # seconds, try by try
# What a machine says that is short of something for the moment, not without a sandbox for good.
_BUSY = tuple(
    os.strerror(number) for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
)
_found: dict[Level, bool] = {}


def sandbox_level(*, plain: bool = False, unsafe: bool | None = None) -> Level:
    """The level `run_programs` would use.

    `unsafe` accepts code without a sandbox where there is none; left out, the environment variable
    `LASTWORD_UNSAFE_CODE=1` says so. `plain` asks for harmless programs alone where there is none.
    """
    for level in (Level.BUBBLEWRAP, Level.NAMESPACES):
        if works(level):
            return level
    accepted = unsafe if unsafe is not None else os.environ.get(UNSAFE) == "1"
    if (accepted or plain) and works(Level.NONE):
        return Level.NONE if accepted else Level.PLAIN
    if accepted or plain:
        raise SandboxError(
            "a child process that ran a program of one line did not come back with its result; as "
            "root, see that the user nobody can read the Python installation, or be another user"
        )
    raise SandboxError(
        "model-written code was to be run, and there is no sandbox here: neither bubblewrap nor "
        "Linux user namespaces work. Install bubblewrap (the program bwrap), allow user namespaces, "
        f"or accept the risk with --unsafe-code or {UNSAFE}=1"
    )


def accept_unsafe_code() -> None:
    """For this process and those it starts: what `--unsafe-code` does."""
    os.environ[UNSAFE] = "1"


def works(level: Level) -> bool:
    """Whether a harmless program passes there. The answer is kept; a busy machine gives none.

    Taking a time-out for a missing sandbox would let code run at a weaker level for as long as this
    process lives, so it is an error instead.
    """
    if level not in _found:
        _found[level] = _try(level)
    return _found[level]


def _try(level: Level) -> bool:
    for seconds in PATIENCE:
        try:
            outcome = run_one(PROBE, level, Limits(wall_seconds=seconds))
        except SandboxError as failed:
            said = str(failed)
        else:
            if outcome.passed:
                return True
            said = outcome.detail
            if outcome.verdict is Verdict.TIMED_OUT:
                continue
        if not any(word in said for word in _BUSY):
            return False
    raise SandboxError(
        f"whether the sandbox level {level.value!r} works here could not be found out: {said.strip()}. "
        "No code was run; try again when the machine is less busy"
    )
