"""What a hostile program tries, and what stops it. None of these may pass, and none may leave a mark."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Verdict
from lastword.sandbox.runner import run_one


def test_the_network_is_out_of_reach(sandbox):
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(type=socket.SOCK_DGRAM)
    with tcp, udp:
        udp.bind(("127.0.0.1", 0))
        tcp.settimeout(0.2)
        udp.settimeout(0.2)
        connect = f"import socket; socket.create_connection({tcp.getsockname()!r}, timeout=1)"
        send = f"import socket; socket.socket(type=2).sendto(b'x', {udp.getsockname()!r})"
        assert run_one(connect, sandbox).verdict is Verdict.FAILED
        run_one(send, sandbox)  # bubblewrap's own loopback takes it and has nobody to give it to
        with pytest.raises(TimeoutError):
            tcp.accept()
        with pytest.raises(TimeoutError):
            udp.recv(1)


def test_sockets_with_a_name_are_out_of_reach(sandbox, tmp_path):
    hidden, path = f"\0lastword-{secrets.token_hex(4)}", str(tmp_path / "socket")
    tmp_path.chmod(0o755)
    for name in (hidden, path):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            if name == path:
                os.chmod(path, 0o777)
            program = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
            assert run_one(program, sandbox).verdict is Verdict.FAILED


@pytest.fixture
def readable_by_all():
    """A folder anyone may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def test_files_outside_cannot_be_read(sandbox, readable_by_all):
    secret = readable_by_all / "secret"
    secret.write_text("kept")
    secret.chmod(0o644)
    home = str(Path.home())
    for program in (
        f"print(open({str(secret)!r}).read())",
        f"import os; print(os.listdir({str(readable_by_all)!r}))",
        f"import os; print(os.listdir({home!r}))",
        "print(open('/etc/passwd').read())",
        f"print(open({__file__!r}).read())",
        f"import os; os.chdir('/'); os.chroot('.'); print(open({str(secret)!r}).read())",
    ):
        outcome = run_one(program, sandbox)
        assert outcome.verdict is Verdict.FAILED
        assert "kept" not in outcome.detail
        assert "root:" not in outcome.detail


def test_files_outside_cannot_be_written(sandbox, readable_by_all):
    mine, new = readable_by_all / "mine", readable_by_all / "new"
    mine.write_text("kept")
    mine.chmod(0o666)
    for attempt in (
        f"open({str(mine)!r}, 'w').write('x')",
        f"open({str(new)!r}, 'w').write('x')",
        f"import os; os.remove({str(mine)!r})",
        f"import os; os.rename({str(mine)!r}, {str(new)!r})",
    ):
        assert run_one(attempt, sandbox).verdict is Verdict.FAILED
        assert [file.name for file in readable_by_all.iterdir()] == ["mine"]
        assert mine.read_text() == "kept"
    for place in ("/lastword", "/usr/lastword", f"{sys.base_prefix}/lastword"):
        assert run_one(f"open({place!r}, 'w')", sandbox).verdict is Verdict.FAILED
        assert not Path(place).exists()


def test_every_file_in_sight_is_read_only(sandbox):
    where = "('/', '/usr', sys.base_prefix)"
    program = f"import os, sys; assert all(os.statvfs(p).f_flag & os.ST_RDONLY for p in {where})"
    assert run_one(program, sandbox).passed


def test_programs_leave_nothing_for_the_next_one(level):
    assert run_one("open('left', 'w').write('x')", level).passed
    assert run_one("import os; assert os.listdir('.') == []", level).passed


def marked(mark: str) -> list[int]:
    """Processes with this argument, given a moment to be gone: the kernel ends them, not we."""
    patience = time.monotonic() + 2
    while found := [
        folder.name for folder in Path("/proc").glob("[0-9]*") if mark.encode() in _arguments(folder)
    ]:
        if time.monotonic() > patience:
            return found
        time.sleep(0.02)
    return []


def _arguments(folder: Path) -> list[bytes]:
    try:
        return (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


SLEEP = next((path for path in ("/usr/bin/sleep", "/bin/sleep") if Path(path).exists()), "")
MANY = """
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
    program = MANY.format(sleep=SLEEP, mark=mark) + "while True: pass" * stays
    outcome = run_one(program, sandbox, Limits(wall_seconds=2.0 if stays else 10.0))
    assert outcome.verdict is (Verdict.TIMED_OUT if stays else Verdict.PASSED), outcome.detail
    assert stays or 10 < int(outcome.detail) < 64
    assert marked(mark) == []


def test_programs_die_with_the_process_that_scores_them(sandbox):
    mark = f"27.{secrets.randbelow(10**8)}"
    program = MANY.format(sleep=SLEEP, mark=mark) + "while True: pass"
    call = f"run_one({program!r}, Level({sandbox.value!r}))"
    scorer = subprocess.Popen(
        [sys.executable, "-c", f"from lastword.sandbox.runner import Level, run_one; {call}"]
    )
    patience = time.monotonic() + 60
    while not any(mark.encode() in _arguments(folder) for folder in Path("/proc").glob("[0-9]*")):
        assert scorer.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.05)
    scorer.kill()
    scorer.wait()
    assert marked(mark) == []


def test_a_fork_loop_does_not_take_processes_from_its_neighbours(sandbox):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    fork = "import os, time\nfor _ in range(40):\n    time.sleep(0.02)\n    os.fork() or os._exit(0)"
    with ThreadPoolExecutor(2) as pool:
        loud = pool.submit(run_one, bomb, sandbox, Limits(wall_seconds=3.0))
        quiet = pool.submit(run_one, fork, sandbox)
        assert quiet.result().passed, quiet.result().detail
        assert loud.result().verdict is Verdict.TIMED_OUT


def test_memory_is_limited(level):
    outcome = run_one("x = bytearray(2 << 30)", level)
    assert outcome.verdict is Verdict.FAILED
    assert "MemoryError" in outcome.detail
    assert run_one("x = bytearray(200 << 20)", level).passed


def test_output_is_limited(level):
    outcome = run_one("while True: print('x' * 10_000)", level)
    assert outcome.verdict is Verdict.FAILED
    assert len(outcome.detail) <= 500
    assert run_one("print('x' * 100_000)", level).passed
    files = run_one("open('big', 'wb').write(bytes(2 << 20))", level)
    assert files.verdict is Verdict.FAILED


def test_processor_time_is_limited_beyond_the_wall_clock(level):
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))"
    assert run_one(program, level, Limits(wall_seconds=2.5)).detail == "(4, 4)\n"


KILL_ABOVE = """
import os, time
for target in (1, os.getppid()):
    try:
        os.kill(target, 9)
    except OSError:
        pass
time.sleep(0.2)
"""


def test_the_parent_cannot_be_read_or_killed(sandbox):
    os.environ["LASTWORD_TEST_SECRET"] = "kept-from-children"
    try:
        me, above = os.getpid(), "os.getppid()"
        for target in (str(me), above, "1"):
            for name in ("environ", "mem", "cmdline", "maps"):
                program = f"import os; print(open(f'/proc/{{{target}}}/{name}', 'rb').read(64))"
                outcome = run_one(program, sandbox)
                assert outcome.verdict is Verdict.FAILED
                assert "kept-from-children" not in outcome.detail
        heard = []
        before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("signal"))
        try:
            for target in (str(me), above, "0", "-1"):
                run_one(f"import os; os.kill({target}, {int(signal.SIGUSR1)})", sandbox)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert heard == []
        outcome = run_one(KILL_ABOVE, sandbox)
        assert outcome.passed, outcome.detail  # had it killed its sandbox, it would have gone with it
    finally:
        del os.environ["LASTWORD_TEST_SECRET"]


def test_programs_side_by_side_do_not_see_each_other(sandbox):
    stranger = subprocess.Popen(["sleep", "20"])
    try:
        program = f"import os; os.kill({stranger.pid}, 9)"
        assert run_one(program, sandbox).verdict is Verdict.FAILED
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


# Looks wherever Python lets a program look, shows every token it finds, and leaves early.
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
    try:
        os.set_blocking(descriptor, False)
        found.update(re.findall(rb"[0-9a-f]{32}", os.read(descriptor, 1 << 16)))
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


def test_the_token_is_not_to_be_found(level, monkeypatch):
    drawn = "5a" * 16
    monkeypatch.setattr("lastword.sandbox.runner.secrets.token_hex", lambda _: drawn)
    outcome = run_one(SNOOP, level)
    assert outcome.verdict is Verdict.FAILED
    assert drawn not in outcome.detail
    assert int(outcome.detail.split()[0]) > 5000, outcome.detail  # it looked at a great deal
    planted = f"held = '{drawn}'\n" + SNOOP
    assert drawn in run_one(planted, level).detail  # and finds one that is there


@pytest.mark.parametrize("stream", ["sys.stdout.fileno()", "2", "3", "4", "5", "6"])
def test_a_guessed_token_is_not_a_pass(level, stream):
    program = f"import os, sys\ntry: os.write({stream}, b'0' * 32)\nexcept OSError: pass\nos._exit(0)"
    assert run_one(program, level).verdict is Verdict.FAILED


def test_privileges_do_not_come_back(sandbox):
    for attempt in ("os.setuid(0)", "os.chroot('/')", "os.setgroups([0])", "os.nice(-5)"):
        assert run_one(f"import os; {attempt}", sandbox).verdict is Verdict.FAILED
    mount = "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0"
    assert run_one(mount, sandbox).verdict is Verdict.FAILED
    again = f"import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\n{mount}"
    assert run_one(again, sandbox).verdict is Verdict.FAILED


def test_landlock_alone_keeps_files_and_the_parent(readable_by_all):
    """Without a sandbox it is the only wall, where the kernel has it."""
    from lastword.sandbox.inside.libc import call

    try:
        version = call("syscall", 444, None, 0, 1)
    except OSError:
        pytest.skip("this kernel has no Landlock")
    (readable_by_all / "secret").write_text("kept")
    (readable_by_all / "secret").chmod(0o666)
    for mode in "rw":
        program = f"open({str(readable_by_all / 'secret')!r}, {mode!r})"
        assert "PermissionError" in run_one(program, Level.NONE).detail
    if version >= 6:
        assert "PermissionError" in run_one("import os; os.kill(os.getppid(), 0)", Level.NONE).detail
