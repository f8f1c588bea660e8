"""Keys, sockets, shared memory, disk and packages: what is within reach of a program beside its files.

Each program passes if it gets what it is after.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastword.sandbox import runner as run
from lastword.sandbox.inside import keyring, seccomp
from lastword.sandbox.inside.libc import call
from lastword.sandbox.level import conditions
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Verdict
from lastword.sandbox.programs import run_programs
from lastword.sandbox.runner import run_one

MACHINE = os.uname().machine
WHICH = {"x86_64": 0, "aarch64": 1}.get(MACHINE)
CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    result = libc.syscall(*words)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result
"""


@pytest.fixture(autouse=True)
def filtered():
    if WHICH is None:
        pytest.skip(f"there is no seccomp filter for {MACHINE}")
    if "seccomp" not in run_one("", Level.NONE).walls:
        pytest.skip("this kernel has no seccomp filter")


def number(name):
    return (seccomp._NEVER | seccomp._NEVER_BARE)[name][WHICH]


@contextmanager
def without(monkeypatch, part, source):
    """Programs started with another source for one part of what goes before them."""
    parts = [
        (name, compile(source, name, "exec") if name.endswith(f".{part}") else code)
        for name, code in run._inside()
    ]
    with monkeypatch.context() as patched:
        patched.setattr(run, "_inside", lambda: parts)
        yield


NO_FILTER = "def refuse(*, bare, landlock): return False"


def test_an_outcome_and_the_conditions_name_the_walls(level, monkeypatch):
    walls = run_one("", level).walls.split(", ")
    assert {"seccomp", "own keyring"} <= set(walls)
    monkeypatch.setattr("lastword.sandbox.level.works", lambda one: one is level)
    assert conditions(unsafe=True)["walls"] == ", ".join(walls)
    with without(monkeypatch, "seccomp", NO_FILTER):
        assert "seccomp" not in run_one("", level).walls


@pytest.fixture
def key():
    """A key of this process's session, which no program may see; its number and what to call."""
    if not keyring.within_reach():
        pytest.skip("this kernel or container has no key rings")
    keyctl, add = number("keyctl"), number("add_key")
    name = f"lastword-{secrets.token_hex(4)}".encode()
    made = call("syscall", add, b"user", name, b"kept", 4, -3)
    yield made, name
    call("syscall", keyctl, 9, made, -3)  # unlink


KEYS = {
    "read it by number": "into = ctypes.create_string_buffer(9); call({keyctl}, 11, {made}, into, 9)",
    "find it": "call({keyctl}, 10, -3, b'user', {name}, 0)",
    "ask for it": "call({request}, b'user', {name}, None, 0)",
    "clear the session's": "call({keyctl}, 7, {ring})",
    "revoke it": "call({keyctl}, 3, {made})",
    "change it": "call({keyctl}, 2, {made}, b'else', 4)",
}


@pytest.mark.parametrize("wall", ["all walls", "own keyring alone"])
def test_the_keys_of_the_scoring_process_are_out_of_reach(level, key, wall, monkeypatch):
    made, name = key
    fill = {
        "keyctl": number("keyctl"), "request": number("request_key"), "made": made, "name": name,
        "ring": call("syscall", number("keyctl"), 0, -3, 0),
    }  # fmt: skip
    for attempt in KEYS.values():
        program = CALL + attempt.format(**fill)
        if wall == "all walls":
            outcome = run_one(program, level)
        else:
            with without(monkeypatch, "seccomp", NO_FILTER):
                outcome = run_one(program, level)
        assert outcome.verdict is Verdict.FAILED, outcome
        assert "AssertionError" in outcome.detail
    held = ctypes.create_string_buffer(4)
    assert call("syscall", number("keyctl"), 11, made, held, 4) == 4
    assert held.raw == b"kept"


def test_without_walls_these_programs_get_what_they_are_after(key, monkeypatch):
    """So that the tests around this one show a wall, and not a program that never worked."""
    find = KEYS["find it"].format(keyctl=number("keyctl"), name=key[1])
    numbers = {call: numbers[WHICH] for call, numbers in seccomp._NEVER.items()}
    with without(monkeypatch, "seccomp", NO_FILTER):
        for name, control in FREED.items():
            program = f"{CALL}got = {WITHIN_REACH[name]}\ncall({{{control}}}, got, 0, 0, 0)"
            assert run_one(program.format(**numbers), Level.NONE).passed, name
        keys = "def join_own(): return False\ndef within_reach(): return False"
        with without(monkeypatch, "keyring", keys):
            outcome = run_one(CALL + find, Level.NONE)
            assert outcome.passed, outcome.detail


def test_own_keys_are_out_of_use_too(level):
    for ring in (-2, -3, -4, -5):  # of the process, the session, the user, the user's session
        program = f"{CALL}call({number('add_key')}, b'user', b'mine', b'x', 1, {ring})"
        assert "Operation not permitted" in run_one(program, level).detail


def test_where_no_ring_can_be_joined_and_keys_are_within_reach_nothing_is_run(level, monkeypatch):
    from lastword.errors import SandboxError

    keys = "def join_own(): return False\ndef within_reach(): return True"
    monkeypatch.setattr("lastword.sandbox.runner.time.sleep", lambda _: None)
    with without(monkeypatch, "keyring", keys):
        assert run_one("", level).passed  # the filter keeps them
        parts = dict(run._inside())
        name = "lastword.sandbox.inside.seccomp"
        parts[name] = compile(NO_FILTER, name, "exec")
        monkeypatch.setattr(run, "_inside", lambda: list(parts.items()))
        with pytest.raises(SandboxError, match="key ring cannot be left"):
            run_one("", level)


ERRORS = """
for name, number in {numbers}.items():
    ctypes.set_errno(0)
    if libc.syscall(number, *[ctypes.c_long(0)] * 6) != -1 or ctypes.get_errno() != 1:
        print(name, os.strerror(ctypes.get_errno()))
"""


def test_calls_that_no_answer_needs_are_refused(level):
    names = list(seccomp._NEVER) + (list(seccomp._NEVER_BARE) if level is Level.NONE else [])
    numbers = {name: number(name) for name in names if number(name)}
    outcome = run_one(CALL + ERRORS.format(numbers=numbers), level)
    assert (outcome.passed, outcome.detail) == (True, "")


WITHIN_REACH = {
    "memory of System V": "call({shmget}, 0, 4096, 0o1600)",
    "a semaphore": "call({semget}, 0, 1, 0o600)",
    "a message queue of System V": "call({msgget}, 0, 0o600)",
    "a message queue": "call({mq_open}, b'lastword', 0o102, 0o600, None)",
    "a user namespace": "call({unshare}, 0x10000000)",
    "a user namespace by clone": "pid = call({clone}, 0x10000011, 0, 0, 0, 0); pid or os._exit(0)",
    "a ring": "call({io_uring_setup}, 1, ctypes.create_string_buffer(120))",
    "faults": "call({userfaultfd}, 1)",
    "the machine below": "import socket; socket.socket(40)",
    "the kernel's ciphers": "import socket; socket.socket(38)",
    "raw packets": "import socket; socket.socket(17, 3)",
}


FREED = {  # what is made would outlive its program
    "memory of System V": "shmctl",
    "a semaphore": "semctl",
    "a message queue of System V": "msgctl",
}


@pytest.mark.parametrize("name", WITHIN_REACH)
def test_what_lies_outside_every_file_system_is_out_of_reach(level, name):
    numbers = {call: numbers[WHICH] for call, numbers in seccomp._NEVER.items()}
    program = CALL + WITHIN_REACH[name].format(**numbers, clone=seccomp._CLONE[WHICH])
    outcome = run_one(program, level)
    assert outcome.verdict is Verdict.FAILED, name
    assert "Operation not permitted" in outcome.detail


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has a second set of numbers")
def test_other_numbers_of_the_same_calls_are_no_way_around(level):
    program = f"{CALL}call({number('keyctl') | 0x40000000}, 0, -3, 0)"
    assert "Operation not permitted" in run_one(program, level).detail


HONEST = {
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(4) as pool: assert list(pool.map(abs, [-1, 2])) == [1, 2]",
    "an event loop": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\nasyncio.run(f())",
    "a shell": "import subprocess\nassert subprocess.check_output('echo a | cat', shell=True) == b'a\\n'",
    "a pair of sockets": "import socket\na, b = socket.socketpair()\na.send(b'1')\nassert b.recv(1) == b'1'",
    "a process with a pipe": "import multiprocessing as m\nm.set_start_method('fork')\na, b = m.Pipe()\n"
    "p = m.Process(target=b.send, args=(5,))\np.start()\nassert a.recv() == 5\np.join()",
    "copies": "import shutil\nopen('a', 'w').write('1')\nshutil.copy('a', 'b')\nshutil.copy2('a', 'c')\n"
    "assert open('c').read() == '1'",
    "an archive": "import tarfile\nopen('a', 'w').write('1')\nwith tarfile.open('t', 'w') as t: t.add('a')\n"
    "with tarfile.open('t') as t: t.extractall()",
    "a database": "import sqlite3\nc = sqlite3.connect('d')\nc.execute('create table t(a)')\nc.commit()",
    "its own limits": "import os, resource\nos.nice(1)\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\n"
    "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "sources of the library": "import inspect, json, random\nassert inspect.getsource(random)",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_do_not_meet_the_walls(level, name):
    outcome = run_one(HONEST[name], level)
    assert outcome.passed, outcome.detail


def test_a_server_of_its_own_works_in_a_sandbox(sandbox):
    program = (
        "import multiprocessing as m\nm.set_start_method('fork')\n"
        "with m.Manager() as s:\n    d = s.dict()\n    d['a'] = 1\n    assert d['a'] == 1"
    )
    assert run_one(program, sandbox).passed


@pytest.fixture
def open_folder():
    """A folder anyone may enter and write to, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_sockets_by_path_or_name_are_out_of_reach_at_every_level(level, open_folder, kind):
    path, name = str(open_folder / "socket"), f"\0lastword-{secrets.token_hex(4)}"
    for address in (path, name):
        with socket.socket(socket.AF_UNIX, kind) as server:
            server.bind(address)
            server.settimeout(0.1)
            if kind == socket.SOCK_STREAM:
                server.listen()
            if address == path:
                os.chmod(path, 0o777)
            for made in ("socket.socket(1, {})", "socket.socketpair(1, {})[0]"):
                program = f"import socket\ns = {made.format(int(kind))}\ns.connect({address!r})"
                assert run_one(program, level).verdict is Verdict.FAILED, program
                assert run_one(f"{program}\ns.send(b'x')", level).verdict is Verdict.FAILED
            with pytest.raises(TimeoutError):
                server.accept() if kind == socket.SOCK_STREAM else server.recv(1)


def test_no_datagram_leaves_a_bare_child():
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.1)
        program = f"import socket\nsocket.socket(type=2).sendto(b'x', {server.getsockname()!r})"
        assert "PermissionError" in run_one(program, Level.NONE).detail
        with pytest.raises(TimeoutError):
            server.recv(1)


def test_a_bare_child_changes_no_rights_and_no_times(open_folder):
    mine = open_folder / "mine"
    mine.write_text("kept")
    os.utime(mine, (1, 1))
    if os.geteuid() == 0:
        os.chown(mine, 65534, 65534)  # it could
    before = mine.stat()
    for attempt in (f"os.chmod({str(mine)!r}, 0)", f"os.utime({str(mine)!r})"):
        assert run_one(f"import os\n{attempt}", Level.NONE).passed  # it only seems so
    for attempt in (
        f"os.truncate({str(mine)!r}, 0)",
        f"os.chown({str(mine)!r}, -1, -1)",
        f"os.setxattr({str(mine)!r}, 'user.a', b'b')",
    ):
        assert "PermissionError" in run_one(f"import os\n{attempt}", Level.NONE).detail
    after = mine.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (before.st_mode, 1, 4)


def test_a_bare_child_sets_nothing_of_other_processes():
    other = subprocess.Popen(
        ["sleep", "20"],
        **({"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}),
    )
    try:
        for attempt in (
            f"resource.prlimit({other.pid}, resource.RLIMIT_NOFILE, (0, 0))",
            f"os.sched_setaffinity({other.pid}, [0])",
            f"os.setpriority(os.PRIO_PROCESS, {other.pid}, 9)",
            "os.setpriority(os.PRIO_USER, 0, 9)",
            f"os.setpriority(os.PRIO_USER, {other.pid}, 9)",
        ):
            outcome = run_one(f"import os, resource\n{attempt}", Level.NONE)
            assert "PermissionError" in outcome.detail, attempt
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == 0
    finally:
        other.kill()
        other.wait()


GETS_AWAY = """
import os, time
if os.fork() == 0:
    try:
        os.{way}
    except OSError:
        pass
    os.execv("/bin/sleep", ["sleep", "{mark}"])
time.sleep(0.2)
"""


@pytest.mark.parametrize("way", ["setsid()", "setpgid(0, 0)"])
def test_a_child_does_not_outlive_a_bare_program(way):
    mark = f"29.{secrets.randbelow(10**8)}"
    assert run_one(GETS_AWAY.format(way=way, mark=mark), Level.NONE).passed
    time.sleep(0.1)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert mark.encode() not in (folder / "cmdline").read_bytes()
        except OSError:
            continue


FILL = """
import os
for n in range(48):
    with open(str(n), "wb") as file:
        file.write(bytes(1 << 20))
{then}
"""


def test_files_are_bounded_in_all(level):
    """Twice: by one that ends when the room does, and one that would go on."""
    outcome = run_one(FILL.format(then="while True: pass"), level, Limits(wall_seconds=8))
    assert outcome.verdict is Verdict.FAILED, outcome
    assert "No space left" in outcome.detail or "more than 16777216 bytes" in outcome.detail
    few = Limits(disk_bytes=1 << 18, wall_seconds=5)
    small = "open('a', 'wb').write(bytes({}))\nimport time; time.sleep(0.3)"
    assert run_one(small.format(1 << 17), level, few).passed
    assert run_one(small.format(1 << 19), level, few).verdict is Verdict.FAILED


def test_nothing_else_can_be_written_to(sandbox):
    program = """
import os
for place in ('/', '/dev', '/dev/shm', '/run', '/var/tmp', '/proc', '/home', '/usr', '/root'):
    try:
        open(os.path.join(place, 'x'), 'w')
        print(place)
    except OSError:
        pass
"""
    assert run_one(program, sandbox).detail == ""


DRAIN = """
import os
for number in range(3, 64):
    try:
        again = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
        os.read(again, 4096)
    except OSError:
        pass
    try:
        os.set_blocking(number, False)
        os.read(number, 4096)
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.filterwarnings("ignore:no sandbox works here")
def test_taking_what_was_written_for_the_judge_fails_that_program_alone(level, monkeypatch):
    monkeypatch.setattr("lastword.sandbox.level.works", lambda one: one is level)
    outcomes = run_programs([DRAIN, "assert True", DRAIN], unsafe=True)
    verdicts = [Verdict.FAILED, Verdict.PASSED, Verdict.FAILED]
    assert [outcome.verdict for outcome in outcomes] == verdicts


NESTED = {
    "by name": "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')",
    "beyond a path": "import os\nfor _ in range(40):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
    "    open('f', 'w').write('x')",
    "closed": "import os\nos.umask(0)\nos.makedirs('a/b/c')\nopen('a/b/f', 'w')\n"
    "os.mkdir('a/b/c/d', 0)\nos.mkdir('e', 0o500)\nos.symlink('/etc', 'l')",
}


@pytest.mark.parametrize("name", NESTED)
def test_whatever_was_left_in_a_working_folder_goes(level, name, monkeypatch, open_folder):
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    outcome = run_one(NESTED[name], level)
    too_long = name == "beyond a path" and level is Level.NONE  # it could not be counted there
    assert outcome.passed is not too_long, outcome.detail
    assert list(open_folder.iterdir()) == []
