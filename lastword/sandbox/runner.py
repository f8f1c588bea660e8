"""run_one: a program in a fresh interpreter that is kept in at a given level, and its verdict.

A program passes if a token drawn for it comes back after its last line. Nothing is ever forked from
this process, which may hold a model: every interpreter is spawned.
"""

from __future__ import annotations

import marshal
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import IO

from lastword.errors import SandboxError
from lastword.sandbox.bubblewrap import bubblewrap
from lastword.sandbox.folder import holds_more, working_folder
from lastword.sandbox.inside.program import BEGUN, ENDED
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Outcome, Verdict
from lastword.sandbox.plain import why_not_plain
from lastword.sandbox.running import Running, end
from lastword.sandbox.sight import sight

BARE = (Level.PLAIN, Level.NONE)
SHOWN = 500  # characters of what a program printed
LOOK = 0.05  # seconds between two looks at the files of a program
INSIDE = (
    "libc", "keyring", "nobody", "namespaces", "landlock", "seccomp", "program", "start",
)  # fmt: skip  # in order of import

# Takes its own modules from standard input, because the package is out of sight in a sandbox.
_STUB = """
import marshal, os, sys
data, left = b"", int(sys.argv[1])
while len(data) < left:
    data += os.read(0, left - len(data)) or sys.exit("standard input ended early")
modules, job = marshal.loads(data)
for name, code in modules:
    sys.modules[name] = type(sys)(name)
    exec(code, sys.modules[name].__dict__)
sys.modules[name].start(**job)
"""


def run_one(program: str, level: Level, limits: Limits = Limits(), running: Running | None = None) -> Outcome:
    """One program at a given level, whether or not it is the strongest.

    Ending what is `running` ends it too.
    """
    source, running = program.encode(errors="replace"), running or Running()
    if level is Level.PLAIN:
        try:
            reason = why_not_plain(source.decode())  # the very text the child compiles
        except SyntaxError as wrong:
            return Outcome(Verdict.FAILED, level, f"not run: SyntaxError: {wrong}")
        if reason:
            return Outcome(Verdict.REFUSED, level, reason)
    for wait in (0.1, 0.5, None):  # a busy machine may be short of processes for a moment
        outcome = "it was stopped" if running.ended else _try(source, level, limits, running)
        if isinstance(outcome, Outcome):
            return outcome
        if wait is not None and not running.ended:
            time.sleep(wait)
    raise SandboxError(
        f"a program could not be started at the level {level.value!r}: {outcome}. It was not judged; "
        "try again with fewer workers or larger limits"
    )


def _try(source: bytes, level: Level, limits: Limits, running: Running) -> Outcome | str:
    """The outcome, or why the program was never reached."""
    token = secrets.token_hex(16).encode()
    with ExitStack() as stack:
        # Not a pipe, which a program could open again at its other end, to take what was written.
        answer, verdict = socket.socketpair()
        stack.enter_context(answer)
        folder = stack.enter_context(working_folder()) if level in BARE else None
        output = stack.enter_context(tempfile.TemporaryFile())
        with verdict:
            try:
                command, start = _command(level, limits, len(source), verdict.fileno())
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"PYTHONHASHSEED": "0"},
                    cwd=folder or "/",
                    pass_fds=[verdict.fileno()],
                    start_new_session=True,
                )
            except OSError as missing:
                return str(missing)
        with running.holding(child):
            stopped = _stopped(child, start + source + token, limits, folder)
            if stopped or level in BARE:
                end(child)  # and what it left behind
        said = _read_at_once(answer)
        printed = _tail(output)
    walls, _, came = said.removeprefix(BEGUN).partition(ENDED)
    begun = said.startswith(BEGUN)
    if not begun and stopped is not Verdict.TIMED_OUT:
        return printed or f"it ended with status {child.returncode}"
    judged = partial(Outcome, level=level, walls=walls.decode() if begun else "")
    if stopped is Verdict.TIMED_OUT:
        return judged(stopped, detail=f"stopped after {limits.wall_seconds:g} s")
    if stopped:
        what = f"more than {limits.disk_bytes} bytes of files, or folders too deep to count them"
        return judged(stopped, detail=f"stopped with {what}")
    if came == token:
        return judged(Verdict.PASSED, detail=printed)
    detail = printed or f"ended early with status {child.returncode}"
    return judged(Verdict.FAILED, detail=detail)


def _stopped(
    child: subprocess.Popen[bytes], given: bytes, limits: Limits, folder: str | None
) -> Verdict | None:
    """Wait for the end; None if it came by itself. Files in `folder` are counted now and then."""
    last = time.monotonic() + limits.wall_seconds
    rest: bytes | None = given
    while (left := last - time.monotonic()) > 0:
        try:
            child.communicate(rest, timeout=min(left, LOOK) if folder else left)
        except subprocess.TimeoutExpired:
            rest = None  # it was taken, and goes on being written
        if folder and holds_more(folder, limits.disk_bytes):
            return Verdict.FAILED
        if child.returncode is not None:
            return None
    return Verdict.TIMED_OUT


def _command(level: Level, limits: Limits, length: int, verdict: int) -> tuple[list[str], bytes]:
    """What to start, and what it reads first."""
    prefix = os.path.realpath(sys.base_prefix)
    seen = sight(prefix)
    job = {
        "level": level.value,
        "visible": list(seen.visible),
        "hidden": list(seen.hidden),
        "readable": seen.around if level in BARE else seen.whole,
        "prefix": prefix,
        "room": limits.disk_bytes,
        "limits": limits.resources(),
        "length": length,
        "verdict": verdict,
    }
    start = marshal.dumps((_inside(), job))
    python = [os.path.realpath(sys.executable), "-s", "-S", "-X", "utf8", "-c", _STUB]
    command = [*python, str(len(start))]
    if level is Level.BUBBLEWRAP:
        wrapped = bubblewrap(seen, limits.disk_bytes, command)
        if wrapped is None:
            raise FileNotFoundError("bwrap is not on the PATH")
        return wrapped, start
    return command, start


@lru_cache(maxsize=1)
def _inside() -> list[tuple[str, CodeType]]:
    here, name = Path(__file__).parent / "inside", "lastword.sandbox.inside"
    parts = [(part, "") for part in ("lastword", "lastword.sandbox", name)]
    parts += [(f"{name}.{part}", (here / f"{part}.py").read_text("utf-8")) for part in INSIDE]
    return [(part, compile(source, f"<{part}>", "exec", dont_inherit=True)) for part, source in parts]


def _read_at_once(answer: socket.socket) -> bytes:
    """Without waiting for the end, which a process that got away may never write."""
    answer.setblocking(False)
    with suppress(BlockingIOError):
        return answer.recv(1024)
    return b""


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")[-SHOWN:]
