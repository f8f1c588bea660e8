"""Hostile programs: none may pass under bubblewrap, reach anything outside, or leave anything behind."""

from __future__ import annotations

import ctypes
import json
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import lastword
from lastword.sandbox import runner
from lastword.sandbox.runner import DENIED_CALLS, Level, Limits, Verdict, run_program

MACHINE = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
if MACHINE is None:
    pytest.skip("there is no seccomp filter for this machine", allow_module_level=True)
NUMBERS = {name: numbers[MACHINE] for name, numbers in DENIED_CALLS.items()}
CLONE = (56, 220)[MACHINE]
UNSHARE = f"call({NUMBERS['unshare']}, 0x10000000)"
MOUNT = "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None): raise OSError"
# Prints the names of the attempts that succeed.
TRY_ALL = """
import ctypes, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    result = libc.syscall(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
for name, code in {attempts!r}.items():
    try:
        exec(code, globals())
    except OSError:
        continue
    print(name, flush=True)
"""
# Attempts that succeed in a child process without a sandbox; each removes what it makes.
OPEN_WITHOUT_SANDBOX = {
    "shared memory": f"libc.shmctl(call({NUMBERS['shmget']}, 0, 4096, 0o1600), 0, None)",
    "semaphore": f"libc.semctl(call({NUMBERS['semget']}, 0, 1, 0o600), 0, 0)",
    "message queue": f"libc.msgctl(call({NUMBERS['msgget']}, 0, 0o600), 0, None)",
    "add a key": f"call({NUMBERS['add_key']}, b'user', b'lastword', b'x', 1, -2)",
    "password file": "open('/etc/passwd').read()",
    "list /": "os.listdir('/proc')",
    "write to /dev/shm": "f = f'/dev/shm/{os.getpid()}'; open(f, 'x').close(); os.remove(f)",
}
CLOSED = {
    "posix queue": f"call({NUMBERS['mq_open']}, b'lastword', 0o102, 0o600, None)",
    "user namespace": UNSHARE,
    "user namespace by clone": f"call({CLONE}, 0x10000011, 0, 0, 0, 0) or os._exit(0)",
    "mount": MOUNT,
    "mount in a namespace": f"{UNSHARE}\n{MOUNT}",
    "io_uring": f"call({NUMBERS['io_uring_setup']}, 1, ctypes.create_string_buffer(120))",
    "page faults": f"call({NUMBERS['userfaultfd']}, 1)",
    "vsock": "socket.socket(40)",
    "kernel ciphers": "socket.socket(38)",
    "raw packets": "socket.socket(17, 3)",
    "x32 numbers": f"call({NUMBERS['keyctl'] | 0x40000000}, 0, -3, 0)",
    "root": "os.setuid(0)",
    "chroot": "os.chroot('/')",
    "groups": "os.setgroups([0])",
    "priority": "os.nice(-5)",
    "the file above": f"open({__file__!r}).read()",
    "home": f"len(os.listdir({str(Path.home())!r})) > 1 or call(-1)",  # the way to Python may lead through it
    "package": f"os.listdir({str(Path(lastword.__file__).parent)!r})[0]",
    **{f"ring {ring}": f"call({NUMBERS['keyctl']}, 0, {ring}, 0)" for ring in (-2, -3, -4, -5)},
    **{
        f"write {place}": f"open({place + '/lastword-test'!r}, 'w')"
        for place in ("/", "/dev", "/run", "/var/tmp", "/home", "/usr", "/root", sys.base_prefix)
    },
    **{
        f"read {name} of {process}": f"open(f'/proc/{process}/{name}', 'rb').read(64)"
        for name in ("environ", "mem", "cmdline", "maps")
        for process in (os.getpid(), "{os.getppid()}", "1")
    },
}


@pytest.fixture
def outside():
    """Attempts to reach files, sockets, keys and processes that everybody may use, and a check of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        folder.chmod(0o777)
        secret, path = folder / "secret", str(folder / "socket")
        secret.write_text("secret")
        secret.chmod(0o666)
        abstract = f"\0lastword-{secrets.token_hex(4)}"
        servers = []
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, path),
            (socket.AF_UNIX, socket.SOCK_STREAM, abstract),
            (socket.AF_UNIX, socket.SOCK_DGRAM, abstract + "-datagrams"),
        ):
            server = stack.enter_context(socket.socket(family, kind))
            server.bind(address)
            server.settimeout(0.1)
            if kind == socket.SOCK_STREAM:
                server.listen(9)
            servers.append(server)
        os.chmod(path, 0o777)
        stranger = stack.enter_context(subprocess.Popen(["sleep", "30"]))
        stack.callback(stranger.kill)
        tcp, udp, *unix = [server.getsockname() for server in servers]
        unix = [name.decode() if isinstance(name, bytes) else name for name in unix]
        open_without = {
            "read": f"open({str(secret)!r}).read()",
            "list": f"os.listdir({str(folder)!r})",
            "write": f"open({str(secret)!r}, 'r+').close()",
            "rights": f"os.utime({str(secret)!r})",
            "tcp": f"socket.create_connection({tcp!r}, timeout=1)",
            "unix by path": f"socket.socket(1).connect({unix[0]!r})",
            "unix by name": f"socket.socket(1).connect({unix[1]!r})",
            "pair by name": f"socket.socketpair(1, 2)[0].sendto(b'x', {unix[2]!r})",
            "datagram by name": f"socket.socket(1, 2).sendto(b'x', {unix[2]!r})",
        }
        closed = {
            "truncate": f"os.truncate({str(secret)!r}, 0)",
            "new file": f"open({str(folder / 'new')!r}, 'w')",
            "remove": f"os.remove({str(secret)!r})",
            "rename": f"os.rename({str(secret)!r}, {str(folder / 'new')!r})",
            "climb": f"os.chdir('/'); os.chroot('.'); open({str(secret)!r}).read()",
            "kill": f"os.kill({stranger.pid}, 9)",
            "signal": f"os.kill({os.getpid()}, {int(signal.SIGUSR1)})",
            "limits": f"resource.prlimit({stranger.pid}, resource.RLIMIT_NOFILE, (0, 0))",
            "processors": f"os.sched_setaffinity({stranger.pid}, [0])",
            "priority of another": f"os.setpriority(os.PRIO_PROCESS, {stranger.pid}, 9)",
        }
        datagram = f"socket.socket(type=2).sendto(b'x', {udp!r})"  # the sandbox has its own loopback interface

        def check():
            assert secret.read_text() == "secret"
            assert {entry.name for entry in folder.iterdir()} == {"secret", "socket"}
            assert stranger.poll() is None
            for server in servers:
                with pytest.raises(TimeoutError):
                    server.recv(1) if server.type == socket.SOCK_DGRAM else server.accept()

        yield open_without, closed, datagram, check


def succeeding(attempts, level):
    outcome = run_program(TRY_ALL.format(attempts=attempts), level, Limits(wall_seconds=30.0))
    assert outcome.passed, outcome.detail
    return outcome.detail.splitlines()


def test_nothing_outside_is_within_reach(sandbox, outside):
    open_without, closed, datagram, check = outside
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append("signal"))
    try:
        assert succeeding(OPEN_WITHOUT_SANDBOX | CLOSED | open_without | closed, sandbox) == []
        succeeding({"datagram": datagram}, sandbox)
        for process in ("os.getppid()", "0", "-1"):
            run_program(f"import os; os.kill({process}, {int(signal.SIGUSR1)})", sandbox)
    finally:
        signal.signal(signal.SIGUSR1, before)
    check()
    assert received == []


def test_without_a_sandbox_these_attempts_succeed(outside):
    """The test above shows walls, and not attempts that fail everywhere."""
    attempts = OPEN_WITHOUT_SANDBOX | outside[0] | {"datagram": outside[2]}
    assert set(attempts) - {*succeeding(attempts, Level.NONE)} <= {"add a key"}  # containers may forbid it


def test_only_the_working_folder_is_writable(sandbox):
    places = "('/', '/usr', sys.base_prefix)"
    program = f"import os, sys; assert all(os.statvfs(p).f_flag & os.ST_RDONLY for p in {places})"
    assert run_program(program, sandbox).passed


def test_the_keys_of_this_process_are_out_of_reach(sandbox, monkeypatch):
    libc, name = ctypes.CDLL(None, use_errno=True), f"lastword-{secrets.token_hex(4)}".encode()
    key = libc.syscall(NUMBERS["add_key"], b"user", name, b"secret", 6, -3)
    if key < 0:
        pytest.skip("this kernel or container has no key rings")
    keyctl, ring = NUMBERS["keyctl"], libc.syscall(NUMBERS["keyctl"], 0, -3, 0)
    attempts = {
        "find": f"call({keyctl}, 10, -3, b'user', {name}, 0)",
        "read": f"into = ctypes.create_string_buffer(9); call({keyctl}, 11, {key}, into, 9)",
        "request": f"call({NUMBERS['request_key']}, b'user', {name}, None, 0)",
        "change": f"call({keyctl}, 2, {key}, b'other!', 6)",
        "clear": f"call({keyctl}, 7, {ring})",
        "revoke": f"call({keyctl}, 3, {key})",
    }
    try:
        assert succeeding(attempts, sandbox) == []
        value = ctypes.create_string_buffer(6)
        assert libc.syscall(keyctl, 11, key, value, 6) == 6
        assert value.raw == b"secret"
        everything = runner.pack("HBBI", 6, 0, 0, 0x7FFF0000)
        monkeypatch.setattr(runner, "seccomp_filter", lambda: everything)
        assert "find" in succeeding(attempts, sandbox) or os.geteuid() != 0  # the filter is what hides keys
    finally:
        libc.syscall(keyctl, 9, key, -3)


KILL_ABOVE = """
import os, time
for target in (1, os.getppid()):
    try:
        os.kill(target, 9)
    except OSError:
        pass
time.sleep(0.2)
"""


def test_the_sandbox_cannot_be_killed_from_inside(sandbox):
    outcome = run_program(KILL_ABOVE, sandbox)
    assert outcome.passed, outcome.detail


def processes_with(mark: str, gone: bool = False) -> list[str]:
    """Return the processes with this argument; with `gone`, wait up to two seconds for their end."""
    deadline = time.monotonic() + 2
    while True:
        processes = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    processes.append(folder.name)
            except OSError:
                continue
        if not gone or not processes or time.monotonic() > deadline:
            return processes
        time.sleep(0.02)


SLEEP = next((path for path in ("/usr/bin/sleep", "/bin/sleep") if Path(path).exists()), "")
FORK_LOOP = """
import os
made = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            os.execv({sleep!r}, ["sleep", {mark!r}])
        made += 1
except OSError:
    print(made, flush=True)
"""


@pytest.mark.parametrize("stays", [False, True], ids=["ends", "stays"])
def test_a_fork_loop_leaves_nothing_alive(sandbox, stays):
    mark = f"31.{secrets.randbelow(10**8)}"
    program = FORK_LOOP.format(sleep=SLEEP, mark=mark) + "while True: pass" * stays
    outcome = run_program(program, sandbox, Limits(wall_seconds=1.5 if stays else 10.0))
    assert outcome.verdict is (Verdict.TIMED_OUT if stays else Verdict.PASSED), outcome.detail
    assert stays or 10 < int(outcome.detail) < 64
    assert processes_with(mark, gone=True) == []


def test_programs_end_with_the_process_that_scores_them(sandbox):
    mark = f"27.{secrets.randbelow(10**8)}"
    program = FORK_LOOP.format(sleep=SLEEP, mark=mark) + "while True: pass"
    code = f"from lastword.sandbox.runner import Level, run_program; run_program({program!r}, {sandbox})"
    scorer = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not processes_with(mark):
        assert scorer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    scorer.kill()
    scorer.wait()
    assert processes_with(mark, gone=True) == []


def test_a_fork_loop_takes_no_processes_from_other_programs(sandbox):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    fork = "import os, time\nfor _ in range(40):\n    time.sleep(0.02)\n    os.fork() or os._exit(0)"
    with ThreadPoolExecutor(2) as pool:
        hostile = pool.submit(run_program, bomb, sandbox, Limits(wall_seconds=2.0))
        harmless = pool.submit(run_program, fork, sandbox)
        assert harmless.result().passed, harmless.result().detail
        assert hostile.result().verdict is Verdict.TIMED_OUT


FILL = "for n in range(48):\n    with open(str(n), 'wb') as file: file.write(bytes(1 << 20))\n"


def test_the_size_of_all_files_is_limited(sandbox):
    outcome = run_program(FILL, sandbox)
    assert outcome.verdict is Verdict.FAILED
    assert "No space left" in outcome.detail
    small = "open('a', 'wb').write(bytes({}))"
    assert run_program(small.format(1 << 17), sandbox, Limits(disk_bytes=1 << 18)).passed
    assert not run_program(small.format(1 << 19), sandbox, Limits(disk_bytes=1 << 18)).passed


NESTED = {
    "deep": "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')",
    "long": "import os\nfor _ in range(40):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
    "    open('f', 'w').write('x')",
    "closed": "import os\nos.umask(0)\nos.makedirs('a/b/c')\nopen('a/b/f', 'w')\n"
    "os.mkdir('a/b/c/d', 0)\nos.mkdir('e', 0o500)\nos.symlink('/etc', 'l')",
}


@pytest.mark.parametrize("name", NESTED)
def test_working_folders_are_removed(level, name, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        outcome = run_program(NESTED[name], level)
        assert outcome.passed, outcome.detail
        assert list(Path(folder).iterdir()) == []
        assert run_program("import os; assert os.listdir('.') == []", level).passed


# Looks wherever Python lets a program look, prints every token it finds, and ends early.
SNOOP = """
import gc, os, re, sys
seen, todo = set(), [sys.argv, os.environ, sys.modules, globals(), sys.orig_argv]
frame = sys._getframe()
while frame:
    todo += [frame, frame.f_locals, frame.f_globals, frame.f_code.co_consts]
    frame = frame.f_back
todo += gc.get_objects() + list(sys._current_frames().values())
found = set()
while todo:
    item = todo.pop()
    if id(item) in seen:
        continue
    seen.add(id(item))
    if isinstance(item, (bytes, str)):
        text = item if isinstance(item, bytes) else item.encode(errors="replace")
        found.update(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", text))
    else:
        todo += gc.get_referents(item)
for path in ("cmdline", "environ", "fd/0", "mem"):
    try:
        with open("/proc/self/" + path, "rb") as file:
            found.update(re.findall(rb"[0-9a-f]{32}", file.read(1 << 20)))
    except (OSError, ValueError):
        pass
for descriptor in range(64):
    for path in (f"/proc/self/fd/{descriptor}", descriptor):
        try:
            again = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if isinstance(path, str) else path
            os.set_blocking(again, False)
            found.update(re.findall(rb"[0-9a-f]{32}", os.read(again, 1 << 16)))
        except OSError:
            pass
print(len(seen), sorted(found))
for descriptor in range(3, 64):
    for token in found:
        try:
            os.write(descriptor, token)
        except OSError:
            pass
sys.stdout.flush()
os._exit(0)
"""


def test_a_program_cannot_find_the_token(level, monkeypatch):
    token = "5a" * 16
    monkeypatch.setattr("lastword.sandbox.runner.secrets.token_hex", lambda _: token)
    outcome = run_program(SNOOP, level)
    assert outcome.verdict is Verdict.FAILED
    assert token not in outcome.detail
    assert int(outcome.detail.split()[0]) > 5000, outcome.detail  # it looked at many objects
    planted = f"visible = '{token}'\n" + SNOOP
    assert token in run_program(planted, level).detail  # and finds a token that is visible


def test_a_guessed_token_fails(level):
    program = "import os, sys\nfor n in range(1, 64):\n    try: os.write(n, b'0' * 32)\n    except OSError: pass\n"
    assert run_program(program + "os._exit(0)", level).verdict is Verdict.FAILED


VERSION = f"python3.{sys.version_info.minor}"
ANSWERS = "the frozen answers"
SCORER = """
import json, sys
from lastword.sandbox.runner import Level, run_program
outcomes = {name: run_program(program, Level.BUBBLEWRAP) for name, program in json.loads(sys.argv[1]).items()}
print(json.dumps({name: [outcome.verdict.value, outcome.detail] for name, outcome in outcomes.items()}))
"""


def link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def movable_interpreter(prefix):
    """Return an interpreter that searches for libpython in `prefix`; skip the test where there is none."""
    program = Path(os.path.realpath(sys.executable)).read_bytes()
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return program
    built = sysconfig.get_config_var("LIBDIR").encode() + b"\0"
    moved = b"$ORIGIN/../lib".ljust(len(built), b"\0")
    if built not in program or len(moved) > len(built):
        pytest.skip("this Python searches for its library in a way that cannot be moved")
    for path in Path(sysconfig.get_config_var("LIBDIR")).glob("libpython*.so*"):
        shutil.copy2(path, prefix / "lib")
    return program.replace(built, moved)


@pytest.fixture(scope="module")
def python():
    """The prefix of an interpreter under /tmp, with a package of answers and a copy of our sources."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        prefix = Path(folder) / "python"
        library = prefix / "lib" / VERSION
        ignored = ("__pycache__", "site-packages", "dist-packages", "test", "config-*", "idlelib", "ensurepip")
        ignore = shutil.ignore_patterns(*ignored)
        shutil.copytree(sysconfig.get_path("stdlib"), library, copy_function=link, ignore=ignore)
        (prefix / "bin").mkdir()
        (prefix / "bin" / VERSION).write_bytes(movable_interpreter(prefix))
        (prefix / "bin" / VERSION).chmod(0o755)
        package = library / "site-packages" / "frozen"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"ANSWERS = {ANSWERS!r}")
        sources, copy = Path(lastword.__file__).parent, Path(folder) / "sources" / "lastword"
        shutil.copytree(sources / "sandbox", copy / "sandbox")
        for path in sources.glob("*.py*"):
            shutil.copy2(path, copy)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield prefix


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_python_in_another_place_shows_no_package_to_any_user(sandbox, python, user):
    if os.geteuid() != 0 and user == "root":
        pytest.skip("only root can be root; the other case covers this user")
    other = user == "nobody" and os.geteuid() == 0
    package = f"{python}/lib/{VERSION}/site-packages"
    programs = {
        "works": "import decimal, json, tempfile\ntempfile.TemporaryFile().write(b'1')",
        "walls": TRY_ALL.format(attempts=OPEN_WITHOUT_SANDBOX | CLOSED),
        "reads": f"print(open('{package}/frozen/__init__.py').read())",
        "imports": f"import sys\nsys.path.append('{package}')\nimport frozen\nprint(frozen.ANSWERS)",
        "starts": "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', "
        "'import frozen; print(frozen.ANSWERS)'], text=True))",
        "writes": f"open('{package}/new', 'w')",
        "fills": FILL,
    }
    scored = subprocess.run(
        [python / "bin" / VERSION, "-c", SCORER, json.dumps(programs)],
        env={"PYTHONPATH": str(python.parent / "sources"), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
        cwd="/",
        **({"user": 65534, "group": 65534, "extra_groups": []} if other else {}),
    )
    outcomes = json.loads(scored.stdout)
    assert outcomes.pop("works")[0] == "passed"
    assert outcomes.pop("walls") == ["passed", ""]
    for name, (verdict, detail) in outcomes.items():
        assert verdict == "failed", name
        assert ANSWERS not in detail


def test_packages_are_hidden_under_every_name_of_their_folder(tmp_path, monkeypatch):
    packages = tmp_path / "real" / "lib" / VERSION / "site-packages"
    (packages / "inner" / "dist-packages").mkdir(parents=True)
    (tmp_path / "other").symlink_to(tmp_path / "real")
    monkeypatch.setattr(runner, "SYSTEM", (f"{tmp_path}/other",))
    monkeypatch.setattr(runner.sys, "base_prefix", f"{tmp_path}/other")
    runner._mounts.cache_clear()
    try:
        arguments = runner._mounts()
    finally:
        runner._mounts.cache_clear()
    hidden = [path for word, path in pairwise(arguments) if word == "--tmpfs"]
    assert str(packages) in hidden
    assert not any(path.endswith("inner/dist-packages") for path in hidden)
