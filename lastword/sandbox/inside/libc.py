"""System calls that the standard library lacks, through ctypes."""

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)

DIE_WITH_PARENT, DUMPABLE, NO_NEW_PRIVILEGES = 1, 4, 38  # <linux/prctl.h>
_CAPABILITY_VERSION = 0x20080522


def call(function: str, *arguments: object) -> int:
    """The result of a C function; what it refuses is an `OSError` that names it."""
    result: int = getattr(_LIBC, function)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return result


def control(what: int, value: int) -> None:
    """`prctl` with one value."""
    call("prctl", what, *(ctypes.c_ulong(word) for word in (value, 0, 0, 0)))


def give_up_privileges() -> None:
    """No capability now, none to be had from a file with special bits, and no looking in."""
    control(NO_NEW_PRIVILEGES, 1)
    call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    control(DUMPABLE, 0)
