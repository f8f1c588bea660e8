"""The bubblewrap command that gives a program a machine of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from lastword.sandbox.inside.nobody import NOBODY


def bubblewrap(visible: Sequence[str], command: Sequence[str]) -> list[str] | None:
    """`command` behind bubblewrap, seeing `visible` read-only and an empty /tmp; None without it.

    Root keeps what it takes to become nobody, which `inside.start` does first.
    """
    program = shutil.which("bwrap")
    if program is None:
        return None
    folders = [str(above) for path in visible for above in reversed(Path(path).parents)]
    words = [program]
    for folder in dict.fromkeys(folder for folder in folders if folder != "/"):
        words += ["--perms", "0755", "--dir", folder]
    for path in visible:
        words += ["--ro-bind", path, path]
    words += ["--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]
    words += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    return [*words, *command]
