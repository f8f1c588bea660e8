"""Execution of model-written Python programs under bubblewrap, with limits, and their verdicts.

Every program runs in a fresh interpreter, which is spawned and not forked, because this process may have
loaded a model. A program passes if its process returns a random token after the program's last line.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import lru_cache
from itertools import count
from pathlib import Path
from struct import pack
from typing import IO

from lastword.errors import SandboxError
from lastword.sandbox.plain import why_not_plain
from lastword.validation import MAX_COUNT, check_choice, check_int, check_list, check_number, check_type

UNSAFE = "LASTWORD_UNSAFE_CODE"
OUTPUT_TAIL = 500  # characters at the end of a program's output that `Outcome.detail` keeps
CHILD = Path(__file__).with_name("child.py").read_text("utf-8")
STARTED, NOBODY = b"+", 65534
MIN_MEMORY = 1 << 26  # bytes that an interpreter needs to start


class Level(Enum):
    """A level of isolation, strongest first. Records contain the values."""

    BUBBLEWRAP = "bubblewrap"  # separate files, processes, network and users
    PLAIN = "plain"  # a child process with limits, only for programs that `why_not_plain` accepts
    NONE = "none"  # a child process with limits


class Verdict(Enum):
    """The result of running one program."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    REFUSED = "refused"  # not run: there is no sandbox, and the program is not plain Python


@dataclass(frozen=True)
class Outcome:
    """The verdict on a program, its isolation level, and as `detail` its last output or why it was stopped."""

    verdict: Verdict
    level: Level
    detail: str

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED


@dataclass(frozen=True)
class Limits:
    """The limits of one program. A process may use one second more of CPU time than `wall_seconds`, rounded up."""

    wall_seconds: int | float = 10.0
    memory_bytes: int = 1 << 30  # per process
    processes: int = 64
    file_bytes: int = 1 << 20  # per file; the output is a file
    disk_bytes: int = 1 << 24  # of all files together; only bubblewrap enforces it

    def __post_init__(self) -> None:
        check_number("Limits", "wall_seconds", self.wall_seconds, above=0)
        check_int("Limits", "memory_bytes", self.memory_bytes, minimum=MIN_MEMORY, maximum=MAX_COUNT)
        for name in ("processes", "file_bytes", "disk_bytes"):
            check_int("Limits", name, getattr(self, name), minimum=1, maximum=MAX_COUNT)

    def resources(self) -> dict[str, int]:
        """Return the limits of a process by the name of their constant in `resource`, without `RLIMIT_`."""
        seconds = math.ceil(self.wall_seconds) + 1
        limits = {"AS": self.memory_bytes, "CPU": seconds, "FSIZE": self.file_bytes, "NPROC": self.processes}
        return limits | {"NOFILE": 64, "CORE": 0}


def run_programs(
    programs: Sequence[str],
    *,
    limits: Limits = Limits(),
    workers: int | None = None,
    plain: bool = False,
    unsafe: bool | None = None,
) -> list[Outcome]:
    """Run programs, `workers` at the same time (default: two per core); return one outcome per program, in order.

    `plain` and `unsafe` matter only if bubblewrap does not work: see `sandbox_level`.
    """
    check_list("run_programs", "programs", programs, "a list of texts, one per program")
    for index, program in enumerate(programs):
        check_type("run_programs", f"programs[{index}]", program, str, "a program as text")
    check_type("run_programs", "limits", limits, Limits, "a Limits(...)")
    if workers is not None:
        check_int("run_programs", "workers", workers, minimum=1)
    if not programs:
        return []
    level = sandbox_level(plain=plain, unsafe=unsafe)
    if level is Level.NONE:
        reason = f"because bubblewrap does not work and --unsafe-code, unsafe=True or {UNSAFE}=1 was given"
        advice = "install bubblewrap to isolate them"
        message = f"{len(programs)} model-written programs run without a sandbox, {reason}; {advice}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    running, pool = RunningPrograms(), ThreadPoolExecutor(workers or 2 * (os.cpu_count() or 1))
    try:
        return list(pool.map(lambda program: run_program(program, level, limits, running), programs))
    finally:  # on Ctrl-C the programs are killed instead of awaited
        running.kill_all()
        pool.shutdown(cancel_futures=True)


def sandbox_level(*, plain: bool = False, unsafe: bool | None = None) -> Level:
    """Return the isolation level that `run_programs` uses; raise SandboxError if no permitted level works.

    If bubblewrap does not work, `plain` permits programs that `why_not_plain` accepts, and `unsafe` permits all
    programs. If `unsafe` is None, the environment variable `LASTWORD_UNSAFE_CODE=1` permits them.
    """
    check_choice("sandbox_level", "plain", plain, True, False)
    if unsafe is not None:
        check_choice("sandbox_level", "unsafe", unsafe, True, False)
    if not (failure := level_failure(Level.BUBBLEWRAP)):
        return Level.BUBBLEWRAP
    accepted = unsafe if unsafe is not None else os.environ.get(UNSAFE) == "1"
    if not accepted and not plain:
        raise SandboxError(
            f"model-written code was not run, because the sandbox does not work: {failure}. Install "
            "bubblewrap (the program bwrap, 0.7 or later) and allow it to create namespaces, or accept the "
            f"risk with --unsafe-code or {UNSAFE}=1"
        )
    if failure := level_failure(Level.NONE):
        raise SandboxError(
            f"a child process could not run a program of one line: {failure}. If you are root, make the "
            "Python installation readable for the user nobody, or use another user"
        )
    return Level.NONE if accepted else Level.PLAIN


def sandbox_info(
    *, plain: bool = False, unsafe: bool | None = None, limits: Limits = Limits()
) -> dict[str, str | int | float]:
    """Return the isolation level and the limits, which records contain under the key `sandbox`."""
    return {"level": sandbox_level(plain=plain, unsafe=unsafe).value, **asdict(limits)}


def sandbox_summary(info: Mapping[str, object], answers: int, refused: int) -> str:
    """Return a sentence on how the code of `answers` answers was isolated; `refused` of them were not run.

    >>> sandbox_summary({"level": "bubblewrap"}, 8, 0)
    'Code of 8 answers: sandbox bubblewrap.'
    """
    walls = f", with {info['walls']}" if "walls" in info else ""  # only in records of versions before 0.2
    not_run = f"; {refused} of them were not run (more than plain Python, no sandbox) and count as wrong"
    return f"Code of {answers} answers: sandbox {info.get('level')}{walls}{not_run * bool(refused)}."


PROBE = "import json, tempfile\ntempfile.TemporaryFile().write(b'1')"  # any program may write temporary files
BUSY = [os.strerror(code) for code in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)]


@lru_cache(maxsize=2)
def level_failure(level: Level) -> str:
    """Return why a harmless program fails at this level, or an empty text if it passes.

    Raise SandboxError if the machine is too busy: as a cached result, this would weaken the level of later runs.
    """
    try:
        outcome = run_program(PROBE, level, Limits(wall_seconds=30.0))
        reason = "" if outcome.passed else outcome.detail.strip() or outcome.verdict.value
    except SandboxError as error:
        outcome, reason = None, str(error)
    if any(text in reason for text in BUSY) or (outcome and outcome.verdict is Verdict.TIMED_OUT):
        raise SandboxError(f"no code was run, because the machine is too busy ({reason}); try again later")
    return reason


class RunningPrograms:
    """The running child processes of all threads of `run_programs`, to be killed together."""

    def __init__(self) -> None:
        self.children, self.ended = set[subprocess.Popen[bytes]](), False

    def kill_all(self) -> None:
        """Kill the running programs, and prevent new ones from starting."""
        self.ended = True
        for child in [*self.children]:
            _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # the child is the leader of its process group


def run_program(
    program: str, level: Level, limits: Limits = Limits(), running: RunningPrograms | None = None
) -> Outcome:
    """Return the outcome of one program at an isolation level; raise SandboxError if it cannot be started."""
    source, running = program.encode(errors="replace"), running or RunningPrograms()
    if level is Level.PLAIN:
        try:
            reason = why_not_plain(source.decode())  # the same text that the child compiles
        except SyntaxError as error:
            return Outcome(Verdict.FAILED, level, f"not run: SyntaxError: {error}")
        if reason:
            return Outcome(Verdict.REFUSED, level, reason)
    for wait in (0.1, 0.5, 0.0):  # a busy machine may reach its process limit for a moment
        outcome = "it was stopped" if running.ended else _run(source, level, limits, running)
        if isinstance(outcome, Outcome):
            return outcome
        reason = outcome.strip()
        time.sleep(0.0 if running.ended else wait)
    raise SandboxError(
        f"a program could not be started at the sandbox level {level.value!r} ({reason}) and was "
        "not judged; try again with fewer workers or larger limits"
    )


def _run(source: bytes, level: Level, limits: Limits, running: RunningPrograms) -> Outcome | str:
    """Run a program once; return its outcome, or as text the reason why it did not start."""
    token, reply, timed_out = secrets.token_hex(16).encode(), b"", False
    receiver, verdict = socket.socketpair()  # not a pipe, whose read end a program could open, too
    with receiver, tempfile.TemporaryFile() as output, _working_folder(level) as folder:
        with verdict:
            try:
                child = _start(len(source), level, limits, verdict.fileno(), folder, output)
            except OSError as error:
                return str(error)
        running.children.add(child)
        try:
            if running.ended:
                _kill(child)
            child.communicate(source + token, timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if child.returncode is None or level is not Level.BUBBLEWRAP:  # bubblewrap kills its processes itself
                _kill(child)
                child.communicate()
            running.children.discard(child)
        receiver.setblocking(False)  # a process that escaped may keep the other end open
        with suppress(BlockingIOError):
            reply = receiver.recv(1024)
        output.seek(0)
        printed = output.read().decode(errors="replace")[-OUTPUT_TAIL:]
    if timed_out:
        return Outcome(Verdict.TIMED_OUT, level, f"stopped after {limits.wall_seconds:g} s")
    detail = printed or f"ended early with status {child.returncode}"
    if not reply.startswith(STARTED):
        return detail
    if reply == STARTED + token:
        return Outcome(Verdict.PASSED, level, printed)
    return Outcome(Verdict.FAILED, level, detail)


@contextmanager
def _working_folder(level: Level) -> Iterator[str]:
    """Yield the working folder of a program; a folder that was made for it is removed with its content."""
    if level is not Level.NONE:  # bubblewrap mounts a tmpfs; plain programs use no files
        yield "/"
        return
    folder = tempfile.mkdtemp()
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:  # `shutil.rmtree` fails on folders without permissions and on deep nesting
        for command in (["chmod", "-R", "u+rwX", folder], ["rm", "-rf", folder]):
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


_users = count(secrets.randbelow(1 << 16))


def _start(
    source_bytes: int, level: Level, limits: Limits, verdict: int, folder: str, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start the child process (child.py), which reads a program and a token from standard input."""
    user = 0
    if os.geteuid() == 0:
        # The kernel limits processes per user, so as root each program gets a user id from systemd's range of
        # dynamic users. Without root, bubblewrap makes a user namespace, and the limit applies to that.
        user = 61184 + next(_users) % 4336 if level is Level.BUBBLEWRAP else NOBODY
    code = f"{CHILD}\nmain({source_bytes}, {verdict}, {user}, {limits.resources()})"
    command = [os.path.realpath(sys.executable), "-s", "-S", "-X", "utf8", "-c", code]
    with tempfile.TemporaryFile() as filter_file:
        if level is Level.BUBBLEWRAP:
            filter_file.write(seccomp_filter())
            filter_file.seek(0)
            command = [*_bubblewrap(limits.disk_bytes), "--seccomp", str(filter_file.fileno()), *command]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PYTHONHASHSEED": "0"} | ({"TMPDIR": folder} if level is Level.NONE else {}),
            cwd=folder,
            pass_fds=[verdict, filter_file.fileno()],
            start_new_session=True,
        )


ISOLATION = """
--chdir /tmp --remount-ro / --die-with-parent --new-session --unshare-net --unshare-pid --unshare-ipc --unshare-uts
--unshare-cgroup-try --cap-drop ALL
"""
# As root, the child keeps the two capabilities that switch to another user; the switch itself drops them.
AS_ROOT = "--cap-add CAP_SETUID --cap-add CAP_SETGID"
AS_USER = f"--unshare-user --uid {NOBODY} --gid {NOBODY}"


def _bubblewrap(disk_bytes: int) -> list[str]:
    """Return the bwrap command up to the program that it runs; raise FileNotFoundError without bwrap."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("bwrap is not on the PATH")
    # /tmp is mounted first, because the interpreter may be installed in it
    command = [bwrap, "--perms", "1777", "--size", str(disk_bytes), "--tmpfs", "/tmp", *_mounts()]
    return [*command, *ISOLATION.split(), *(AS_USER if os.geteuid() else AS_ROOT).split()]


SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
# Patterns for folders of installed packages under a prefix; the last two are conda's.
PACKAGES = ("lib*/py*/site-packages", "lib*/py*/dist-packages", "envs", "pkgs")


@lru_cache(maxsize=1)
def _mounts() -> list[str]:
    """Return the bwrap arguments that mount Python and the system libraries, read-only and without packages.

    Installed packages are hidden because they may contain the answers to tasks, as lastword does.
    """
    prefix = os.path.realpath(sys.base_prefix)
    links = [path for path in SYSTEM if os.path.islink(path)]
    visible = [path for path in SYSTEM if os.path.isdir(path) and path not in links]
    if not _is_in(prefix, visible):
        visible.append(prefix)
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(__file__).parents[1])}
    for root in (prefix, "/usr", "/usr/local"):
        packages |= {str(path) for pattern in PACKAGES for path in Path(root).glob(pattern)}
    hidden: list[str] = []
    for path in sorted({os.path.realpath(path) for path in packages if os.path.isdir(path)}):
        if _is_in(path, visible) and not _is_in(path, hidden):
            hidden.append(path)
    arguments = [word for link in links for word in ("--symlink", os.readlink(link), link)]
    for parent in dict.fromkeys(str(above) for path in visible for above in reversed(Path(path).parents)):
        arguments += ["--perms", "0755", "--dir", parent] if parent not in ("/", "/tmp") else []
    for path in visible:
        arguments += ["--ro-bind", path, path]
    for path in hidden:
        arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    return arguments


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


# Denied system calls, with their numbers on x86_64 and aarch64. They could bypass namespaces and limits: kernel
# keys belong to the session of this process, and shared memory and queues are outside the memory limit.
DENIED_CALLS = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "shmget": (29, 194),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "unshare": (272, 97),
    "setns": (308, 268), "ptrace": (101, 117), "process_vm_readv": (310, 270), "bpf": (321, 280),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "open_by_handle_at": (304, 265),
}  # fmt: skip
SOCKET_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6 and netlink, which the network namespace isolates
NAMESPACE_FLAGS = 0x7E020000  # the CLONE_NEW flags of the system call clone


@lru_cache(maxsize=1)
def seccomp_filter() -> bytes:
    """Return a seccomp filter that fails denied calls with EPERM; on other architectures it allows all calls."""
    load, equal, at_least, any_bit, result = 0x20, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
    allow, deny, missing = ((result, 0, 0, value) for value in (0x7FFF0000, 0x50001, 0x50026))
    machine = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
    if machine is None or sys.maxsize < 2**32:
        return pack("HBBI", *allow)
    steps = [(load, 0, 0, 4), (equal, 1, 0, (0xC000003E, 0xC00000B7)[machine]), deny]  # the 32-bit interface
    steps += [(load, 0, 0, 0), (at_least, 0, 1, 0x40000000), deny]  # the x32 interface
    for numbers in DENIED_CALLS.values():
        steps += [(equal, 0, 1, numbers[machine]), deny]
    steps += [(equal, 0, 1, 435), missing]  # clone3: its flags cannot be read; libraries fall back to clone
    steps += [(equal, 0, 4, (56, 220)[machine]), (load, 0, 0, 16), (any_bit, 0, 1, NAMESPACE_FLAGS), deny, allow]
    steps += [(equal, 1, 0, (41, 198)[machine]), allow, (load, 0, 0, 16)]  # socket
    for family in SOCKET_FAMILIES:
        steps += [(equal, 0, 1, family), allow]
    return b"".join(pack("HBBI", *step) for step in [*steps, deny])
