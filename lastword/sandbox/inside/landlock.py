"""Landlock: a process gives up, for itself and its children, every file it does not name.

It is a second wall inside the sandboxes, and the only one without them.
"""

import ctypes
import os

from lastword.sandbox.inside.libc import call

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on every architecture
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_BENEATH, _ASK_VERSION = 1, 1
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many rights over files a version knows; later ones 16
_TCP = 0b11  # bind and connect, from version 4
_OUTSIDE = 0b11  # abstract sockets and signals of processes outside, from version 6


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


_READ = {  # what may be done at a path that is only read, by its kind
    "tree": _EXECUTE | _READ_FILE | _READ_FOLDER,
    "file": _EXECUTE | _READ_FILE,
    "names": _READ_FOLDER,
}


def confine(readable: dict[str, str]) -> int:
    """Read what is `readable`, write in the working folder, no other file, no TCP. The version, or 0.

    `readable` says of each path whether it is a tree, a file, or a folder of which the names are seen.
    """
    try:
        version = call("syscall", _CREATE, None, ctypes.c_size_t(0), _ASK_VERSION)
    except OSError:
        return 0  # this kernel has none
    everything = (1 << _RIGHTS.get(version, 16)) - 1
    rules = (everything, _TCP, _OUTSIDE)[: 3 if version >= 6 else 2 if version >= 4 else 1]
    fields = (ctypes.c_uint64 * len(rules))(*rules)
    size = ctypes.c_size_t(ctypes.sizeof(fields))
    ruleset = call("syscall", _CREATE, ctypes.byref(fields), size, 0)
    allowed = {path: _READ[kind] for path, kind in readable.items()} | {".": everything}
    for path, rights in allowed.items():
        folder = os.open(path, os.O_PATH)
        rule = ctypes.byref(_Beneath(rights, folder))
        call("syscall", _ADD, ruleset, _BENEATH, rule, 0)
        os.close(folder)
    call("syscall", _RESTRICT, ruleset, 0)
    os.close(ruleset)
    return version
