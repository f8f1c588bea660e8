"""The kernel's key rings: a program would share the session's with the process that scores it."""

import os

from lastword.sandbox.inside.libc import call

_NUMBERS = {"x86_64": 250, "aarch64": 219}  # the system call keyctl
_FIND, _JOIN, _SESSION = 0, 1, -3


def join_own() -> bool:
    """Begin an empty session key ring, and say so. Some containers forbid it, with all of keyctl."""
    return _keyctl(_JOIN, None)


def within_reach() -> bool:
    """Whether a program could use a session's key ring."""
    return _keyctl(_FIND, _SESSION)


def _keyctl(*arguments: object) -> bool:
    number = _NUMBERS.get(os.uname().machine)
    if number is None:
        return False
    try:
        call("syscall", number, *arguments, 0)
    except OSError:
        return False
    return True
