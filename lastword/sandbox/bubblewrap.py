"""The bubblewrap command that gives a program a machine of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from lastword.sandbox.inside.nobody import NOBODY
from lastword.sandbox.sight import Sight


def bubblewrap(seen: Sight, room: int, command: Sequence[str]) -> list[str] | None:
    """`command` behind bubblewrap, seeing files read-only and an empty /tmp of `room` bytes; None without it.

    Root keeps what it takes to become nobody, which `inside.start` does first.
    """
    program = shutil.which("bwrap")
    if program is None:
        return None
    # /tmp first: the interpreter may lie in it
    words = [program, "--perms", "1777", "--size", str(room), "--tmpfs", "/tmp"]
    folders = [str(above) for path in seen.visible for above in reversed(Path(path).parents)]
    for folder in dict.fromkeys(folder for folder in folders if folder not in ("/", "/tmp")):
        words += ["--perms", "0755", "--dir", folder]
    for path in seen.visible:
        words += ["--ro-bind", path, path]
    for path in seen.hidden:
        words += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    words += ["--chdir", "/tmp", "--remount-ro", "/"]
    words += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    return [*words, *command]
