"""Run Python that a model wrote, where it can do no harm, and say whether it got to its end.

Every program gets a fresh isolated interpreter with an empty environment, resource limits, a wall
clock, no standard input, capped output, no network, and a file system that holds the interpreter
and nothing of ours. It passes if it prints, after its last line, a random token drawn for it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from lastword.errors import TaskError

WALL_SECONDS = 10.0
NOBODY = "65534"


class Level(Enum):
    """How a program was kept in."""

    BUBBLEWRAP = "bubblewrap: own file system, no network, own processes"
    NAMESPACES = "unshare and chroot: own file system, no network, own processes"
    LIMITS = "child process with resource limits only: files and network are open"


@dataclass(frozen=True)
class Outcome:
    """What became of one program. `detail` is the end of what it printed, or why it was stopped."""

    passed: bool
    level: Level
    detail: str


# The program comes by standard input, closed when it runs. Too much output is too large a file.
_START = """
import resource
limits = {{"AS": 1 << 30, "CPU": {cpu}, "FSIZE": 1 << 20, "NOFILE": 64, "NPROC": 64, "CORE": 0}}
for what, most in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
exec(compile(open(0, encoding="utf-8").read(), "answer", "exec"), {{"__name__": "__main__"}})
"""

# Run as root of new namespaces: a file system with the interpreter, read-only, and an empty /tmp.
_ENTER = """
set -e
root=/media; [ -d "$root" ] || root=/tmp
mount -t tmpfs -o size=16m,mode=755 none "$root"
for path in "$@"; do
    [ "$path" = -- ] && break
    mkdir -p "$root$path"
    mount --rbind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done
while [ "$1" != -- ]; do shift; done; shift
mkdir -m 1777 "$root/tmp"
mount -t tmpfs -o size=16m,mode=1777 none "$root/tmp"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv "$@"
"""


def run_programs(
    programs: Sequence[str],
    *,
    workers: int | None = None,
    wall: float = WALL_SECONDS,
    allow_unsafe: bool = False,
) -> list[Outcome]:
    """Run each program in a process of its own, `workers` at a time (default: one per core)."""
    if not programs:
        return []
    level = _level(allow_unsafe)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda program: _run(program, level, wall), programs))


@lru_cache(maxsize=2)
def _level(allow_unsafe: bool) -> Level:
    """The strongest level that works on this machine, found by running an empty program."""
    for level in Level:
        if level is Level.LIMITS and not allow_unsafe:
            break
        if _run("", level, WALL_SECONDS).passed:
            return level
    raise TaskError(
        "model-written code cannot be isolated here: neither bubblewrap nor unshare works. "
        "Install bubblewrap and allow user namespaces, or pass allow_unsafe=True to run it "
        "with resource limits only."
    )


def _command(level: Level, wall: float) -> list[str]:
    python = [os.path.realpath(sys.executable), "-I", "-S", "-c", _START.format(cpu=int(wall) + 1)]
    visible = [p for p in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix) if os.path.exists(p)]
    # Root needs no user namespace, and can become nobody in earnest.
    root = os.geteuid() == 0
    drop = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if root else []
    drop += ["--bounding-set=-all", "--no-new-privs", *python]
    if level is Level.BUBBLEWRAP:
        above = [str(folder) for folder in reversed(Path(sys.base_prefix).parents)][1:]
        binds = [word for folder in above for word in ("--perms", "0755", "--dir", folder)]
        binds += [word for path in visible for word in ("--ro-bind", path, path)]
        spaces = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        spaces += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--chdir", "/"]
        if not root:
            return ["bwrap", *binds, "--tmpfs", "/tmp", "--unshare-user", *spaces, *python]
        for needed in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            spaces += ["--cap-add", needed]
        return ["bwrap", *binds, "--perms", "1777", "--tmpfs", "/tmp", *spaces, "setpriv", *drop]
    if level is Level.NAMESPACES:
        spaces = ["-n", "-m", "-p", "-i", "-u", "-f", "--kill-child", *([] if root else ["-r"])]
        return ["unshare", *spaces, "sh", "-c", _ENTER, "sh", *visible, "--", *drop]
    return python


def _run(program: str, level: Level, wall: float) -> Outcome:
    token = secrets.token_hex(16)
    source = f"{program}\nprint({token!r})\n".encode(errors="replace")
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                _command(level, wall),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as missing:
            return Outcome(False, level, f"could not be started: {missing}")
        try:
            child.communicate(source, timeout=wall)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return Outcome(False, level, f"stopped after {wall:g} s")
        output.seek(0)
        text = output.read().decode(errors="replace").rstrip()
    return Outcome(text.endswith(token), level, text.removesuffix(token)[-500:])
