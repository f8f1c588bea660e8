"""run_one: a program in a fresh interpreter that is kept in at a given level, and its verdict.

A program passes if a token drawn for it comes back after its last line. Nothing is ever forked from
this process, which may hold a model: every interpreter is spawned.
"""

from __future__ import annotations

import marshal
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import IO

from lastword.errors import SandboxError
from lastword.sandbox.bubblewrap import bubblewrap
from lastword.sandbox.inside.nobody import NOBODY
from lastword.sandbox.inside.program import BEGUN
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Outcome, Verdict
from lastword.sandbox.plain import why_not_plain

BARE = (Level.PLAIN, Level.NONE)
SHOWN = 500  # characters of what a program printed
INSIDE = ("libc", "nobody", "namespaces", "landlock", "program", "start")  # in order of import

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


def run_one(program: str, level: Level, limits: Limits = Limits()) -> Outcome:
    """One program at a given level, whether or not it is the strongest."""
    source = program.encode(errors="replace")
    if level is Level.PLAIN:
        try:
            reason = why_not_plain(source.decode())  # the very text the child compiles
        except SyntaxError as wrong:
            return Outcome(Verdict.FAILED, level, f"not run: SyntaxError: {wrong}")
        if reason:
            return Outcome(Verdict.REFUSED, level, reason)
    for wait in (0.1, 0.5, None):  # a busy machine may be short of processes for a moment
        outcome = _try(source, level, limits)
        if isinstance(outcome, Outcome):
            return outcome
        if wait is not None:
            time.sleep(wait)
    raise SandboxError(
        f"a program could not be started at the level {level.value!r}: {outcome}. It was not judged; "
        "try again with fewer workers"
    )


def _try(source: bytes, level: Level, limits: Limits) -> Outcome | str:
    """The outcome, or why the program was never reached."""
    token = secrets.token_hex(16).encode()
    with ExitStack() as stack:
        answer, verdict = os.pipe()
        stack.callback(os.close, answer)
        folder = stack.enter_context(_working_folder(level))
        output = stack.enter_context(tempfile.TemporaryFile())
        try:
            command, start = _command(level, limits, len(source), verdict)
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PYTHONHASHSEED": "0"},
                cwd=folder,
                pass_fds=[verdict],
                start_new_session=True,
            )
        except OSError as missing:
            return str(missing)
        finally:
            os.close(verdict)
        try:
            child.communicate(start + source + token, timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            return Outcome(Verdict.TIMED_OUT, level, f"stopped after {limits.wall_seconds:g} s")
        if level in BARE:
            _end(child)  # and what it left behind
        said = _read_at_once(answer)
        printed = _tail(output)
    if said == BEGUN + token:
        return Outcome(Verdict.PASSED, level, printed)
    if not said.startswith(BEGUN):
        return printed or f"it ended with status {child.returncode}"
    detail = printed or f"ended early with status {child.returncode}"
    return Outcome(Verdict.FAILED, level, detail)


def _command(level: Level, limits: Limits, length: int, verdict: int) -> tuple[list[str], bytes]:
    """What to start, and what it reads first."""
    prefix = os.path.realpath(sys.base_prefix)
    visible = [path for path in ("/usr", "/lib", "/lib64", "/bin") if os.path.exists(path)]
    if not any(Path(prefix).is_relative_to(path) for path in visible):
        visible.append(prefix)
    job = {
        "level": level.value,
        "visible": visible,
        "prefix": prefix,
        "limits": limits.resources(),
        "length": length,
        "verdict": verdict,
    }
    start = marshal.dumps((_inside(), job))
    python = [os.path.realpath(sys.executable), "-s", "-S", "-X", "utf8", "-c", _STUB]
    command = [*python, str(len(start))]
    if level is Level.BUBBLEWRAP:
        wrapped = bubblewrap(visible, command)
        if wrapped is None:
            raise FileNotFoundError("bwrap is not on the PATH")
        return wrapped, start
    return command, start


@lru_cache(maxsize=1)
def _inside() -> list[tuple[str, CodeType]]:
    here, name = Path(__file__).parent / "inside", "lastword.sandbox.inside"
    parts = [(part, "") for part in ("lastword", "lastword.sandbox", name)]
    parts += [(f"{name}.{part}", (here / f"{part}.py").read_text("utf-8")) for part in INSIDE]
    return [
        (part, compile(source, f"<{part}>", "exec", dont_inherit=True)) for part, source in parts
    ]


@contextmanager
def _working_folder(level: Level) -> Iterator[str]:
    """Sandboxes have a /tmp of their own; a bare child gets a folder that goes when it does."""
    if level not in BARE:
        yield "/"
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _read_at_once(pipe: int) -> bytes:
    """Without waiting for the end, which a process that got away may never write."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        return os.read(pipe, 1024)
    return b""


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")[-SHOWN:]
