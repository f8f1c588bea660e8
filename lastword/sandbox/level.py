"""Which sandbox: the strongest that works here, found by trying it."""

from __future__ import annotations

import os
from enum import Enum
from functools import lru_cache

from lastword.errors import SandboxError

UNSAFE = "LASTWORD_UNSAFE_CODE"
# Reads the standard library, writes to the working folder: what any program may expect.
PROBE = "import json, tempfile\ntempfile.TemporaryFile().write(b'1')"


class Level(Enum):
    """How programs are kept in, strongest first. The value is what records hold."""

    BUBBLEWRAP = "bubblewrap"  # own file system, no network, own processes, by bwrap
    NAMESPACES = "namespaces"  # the same by system calls
    PLAIN = "plain"  # a bare child, and only programs that could do nothing anyway: see plain.py
    NONE = "none"  # a bare child with resource limits, and Landlock where the kernel has it


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


@lru_cache(maxsize=len(Level))
def works(level: Level) -> bool:
    """Whether a harmless program passes there."""
    from lastword.sandbox.runner import run_one

    try:
        return run_one(PROBE, level).passed
    except SandboxError:
        return False
