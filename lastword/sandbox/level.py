"""Which sandbox: the strongest that works here, found by trying it."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict

from lastword.errors import SandboxError
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Outcome, Verdict
from lastword.sandbox.runner import run_one
from lastword.validation import check_choice

UNSAFE = "LASTWORD_UNSAFE_CODE"
# Reads the standard library, writes to the working folder: what any program may expect.
PROBE = "import json, tempfile\ntempfile.TemporaryFile().write(b'1')"
PATIENCE = (10.0, 30.0)  # seconds, try by try
# What a machine says that is short of something for the moment, not without a sandbox for good.
_BUSY = tuple(os.strerror(number) for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
_found: dict[Level, Outcome | str] = {}  # what the probe came to, or why it was not reached


def sandbox_level(*, plain: bool = False, unsafe: bool | None = None) -> Level:
    """The level `run_programs` would use.

    `unsafe` accepts code without a sandbox where there is none; left out, the environment variable
    `LASTWORD_UNSAFE_CODE=1` says so. `plain` asks for harmless programs alone where there is none.
    """
    check_choice("sandbox_level", "plain", plain, True, False)
    if unsafe is not None:
        check_choice("sandbox_level", "unsafe", unsafe, True, False)
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
        f"Linux user namespaces work{_reasons()}. Install bubblewrap (the program bwrap, 0.7 or later), "
        f"allow user namespaces, or accept the risk with --unsafe-code or {UNSAFE}=1"
    )


def conditions(
    *, plain: bool = False, unsafe: bool | None = None, limits: Limits = Limits()
) -> dict[str, str | int | float]:
    """What a record says under `sandbox`: the level, the walls that stand there, and the limits.

    Walls are "landlock" with its version, "seccomp" and "own keyring"; a kernel may lack any of them.
    """
    level = sandbox_level(plain=plain, unsafe=unsafe)
    probe = _probe(Level.NONE if level is Level.PLAIN else level)
    walls = probe.walls if isinstance(probe, Outcome) else ""
    return {"level": level.value, "walls": walls or "none", **asdict(limits)}


def accept_unsafe_code() -> None:
    """For this process and those it starts: what `--unsafe-code` does."""
    os.environ[UNSAFE] = "1"


def works(level: Level) -> bool:
    """Whether a harmless program passes there. The answer is kept; a busy machine gives none.

    Taking a time-out for a missing sandbox would let code run at a weaker level for as long as this
    process lives, so it is an error instead.
    """
    probe = _probe(level)
    return isinstance(probe, Outcome) and probe.passed


def _probe(level: Level) -> Outcome | str:
    if level not in _found:
        _found[level] = _try(level)
    return _found[level]


def _reasons() -> str:
    """Why the sandboxes that were tried do not work, by name; nothing if none was."""
    tried = [(level.value, _found[level]) for level in Level if level in _found]
    said = [(name, why.detail if isinstance(why, Outcome) else why) for name, why in tried]
    last = [f"{name}: {why.strip().splitlines()[-1]}" for name, why in said if why.strip()]
    return f" ({'; '.join(last)})" if last else ""


def _try(level: Level) -> Outcome | str:
    for seconds in PATIENCE:
        try:
            outcome = run_one(PROBE, level, Limits(wall_seconds=seconds))
        except SandboxError as failed:
            said = str(failed)
        else:
            if outcome.passed:
                return outcome
            said = outcome.detail
            if outcome.verdict is Verdict.TIMED_OUT:
                continue
        if not any(word in said for word in _BUSY):
            return said
    raise SandboxError(
        f"whether the sandbox level {level.value!r} works here could not be found out: {said.strip()}. "
        "No code was run; try again when the machine is less busy"
    )
