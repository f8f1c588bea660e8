"""A machine of its own for one program, by Linux namespaces.

Everyone is an ordinary user here: root becomes nobody first, and a user namespace then lends the
rights that setting up takes. They are given up before the program starts.
"""

import ctypes
import os

from lastword.sandbox.inside.libc import DUMPABLE, call, control
from lastword.sandbox.inside.nobody import NOBODY, become_nobody

NEW_USER = 0x10000000  # <linux/sched.h>; the others: processes, network, mounts, names, messages
_NEW_ALL = NEW_USER | 0x20000000 | 0x40000000 | 0x00020000 | 0x04000000 | 0x08000000
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 2  # <sys/mount.h>
_NO_SETUID, _NO_DEVICES, _READ_ONLY = 2, 4, 1
_MOUNT_SETATTR, _HERE, _WHOLE_TREE = 442, -100, 0x8000  # the same number on every architecture
# Where the new file system is built: always there, and no program needs the old one
_ROOT = "/proc"
_SMALLEST_FILE = 4096  # an empty one takes room too, if not on the disk


def enter(visible: list[str], hidden: list[str], prefix: str, room: int) -> None:
    """No network, no other processes in reach, and a file system of `visible`, read-only, and /tmp.

    Folders that are `hidden` are empty; /tmp takes `room` bytes.

    The process namespace begins with the next fork. `prefix` is the interpreter's own folder, which
    nobody may not be able to walk to: it is entered before root is left, and mounted as ".".
    """
    os.chdir(prefix)
    become_nobody()
    user, group = os.getuid(), os.getgid()
    control(DUMPABLE, 1)  # or the files below belong to root since it was left
    call("unshare", _NEW_ALL)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
    _write("/proc/self/gid_map", f"{NOBODY} {group} 1")
    # User namespaces below this one would lend rights again. Not contextlib: 2 ms for every program.
    try:  # noqa: SIM105
        _write("/proc/sys/user/max_user_namespaces", "0")
    except OSError:  # read-only in some containers; Landlock still forbids them to mount anything
        pass
    _build(visible, hidden, prefix, room)
    os.chdir(_ROOT)
    call("pivot_root", b".", b".")  # the old root lies on top of the new one until it is let go
    call("umount2", b".", _DETACH)
    os.chdir("/tmp")


def _build(visible: list[str], hidden: list[str], prefix: str, room: int) -> None:
    bare = _NO_SETUID | _NO_DEVICES
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)
    _mount("none", _ROOT, "tmpfs", bare, "size=1m,mode=755")
    os.mkdir(f"{_ROOT}/tmp")  # first: the interpreter may lie in /tmp itself
    files = max(room // _SMALLEST_FILE, 64)
    own = f"size={room},nr_inodes={files},mode=1777"
    _mount("none", f"{_ROOT}/tmp", "tmpfs", bare, own)
    for path in visible:
        os.makedirs(_ROOT + path, exist_ok=True)
        _mount("." if path == prefix else path, _ROOT + path, flags=_BIND | _RECURSIVE)
        _make_read_only(_ROOT + path, _WHOLE_TREE)
    for path in hidden:
        _mount("none", _ROOT + path, "tmpfs", bare | _READ_ONLY, "size=4k,mode=755")
    _make_read_only(_ROOT, 0)


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def _make_read_only(path: str, reach: int) -> None:
    change = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(change))
    call("syscall", _MOUNT_SETATTR, _HERE, os.fsencode(path), reach, ctypes.byref(change), size)


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)  # `open` may need a codec that nobody cannot import yet
    os.write(file, text.encode())
    os.close(file)
