"""Levels, limits and verdicts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time

import pytest

from lastword.errors import SandboxError, SettingError
from lastword.sandbox import UNSAFE, Level, Limits, Outcome, Verdict, run_programs, sandbox_info, sandbox_level
from lastword.sandbox.runner import RunningPrograms, level_failure, run_program
from tests.sandbox.test_attacks import processes_with

PASSES = {
    "nothing": "",
    "an assert": "assert 1 + 1 == 2",
    "a temporary file": "import tempfile; tempfile.TemporaryFile().write(b'b')",
    "the standard library": "import collections, decimal, encodings.idna, json, math, re",
    "a dataclass": "import dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n    b: 'int'\n"
    "assert pickle.loads(pickle.dumps(A(1))) == A(1)\nassert __name__ == '__main__'",
    "annotations": "def f(x: int): pass\nassert f.__annotations__['x'] is int",
    "text": "assert 'é'.encode() == b'\\xc3\\xa9'; print('é')",
    "a signal": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('caught'))\n"
    "os.kill(os.getpid(), signal.SIGTERM)",
    "copies": "import shutil\nopen('a', 'w').write('1')\nshutil.copy('a', 'b')\nshutil.copy2('a', 'c')\n"
    "assert open('c').read() == '1'",
    "an archive": "import tarfile\nopen('a', 'w').write('1')\nwith tarfile.open('t', 'w') as t: t.add('a')\n"
    "with tarfile.open('t') as t: t.extractall()",
    "a database": "import sqlite3\nc = sqlite3.connect('d')\nc.execute('create table t(a)')\nc.commit()",
    "its limits": "import os, resource\nos.nice(1)\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\n"
    "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "sources of the library": "import inspect, json, random\nassert inspect.getsource(random)",
    "200 MB": "x = bytearray(200 << 20)",
    "much output": "print('x' * 100_000)",
}
# Without a sandbox, the kernel counts all processes of the user.
PASSES_WITH_PROCESSES = {
    "a thread and a process": "import os, threading\nt = threading.Thread(target=print)\n"
    "t.start(); t.join()\npid = os.fork()\nif not pid: os._exit(0)\nassert os.wait()[0] == pid",
    "a child that ends like it": "import os\nos.fork() and os.wait()",
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(4) as pool: assert list(pool.map(abs, [-1, 2])) == [1, 2]",
    "an event loop": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\nasyncio.run(f())",
    "a shell": "import subprocess\nassert subprocess.check_output('echo a | cat', shell=True) == b'a\\n'",
    "a process with a pipe": "import multiprocessing as m\nm.set_start_method('fork')\na, b = m.Pipe()\n"
    "p = m.Process(target=b.send, args=(5,))\np.start()\nassert a.recv() == 5\np.join()",
    "a server": "import multiprocessing as m\nm.set_start_method('fork')\n"
    "with m.Manager() as s:\n    d = s.dict()\n    d['a'] = 1\n    assert d['a'] == 1",
}
FAILS = {
    "wrong": "assert 1 == 2",
    "not python": "def f(:",
    "null byte": "x = 1\0",
    "early exit": "import os; os._exit(0)",
    "polite early exit": "import sys; sys.exit(0)",
    "exit in a function": "def f(): raise SystemExit\nf()\nassert False",
    "standard input": "input()",
    "dies": "import os; os.kill(os.getpid(), 9)",
    "another program": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])",
}


def case_list(*tables):
    return [pytest.param(program, id=name) for table in tables for name, program in table.items()]


@pytest.mark.parametrize("program", case_list(PASSES, PASSES_WITH_PROCESSES))
def test_harmless_programs_pass_in_the_sandbox(sandbox, program):
    outcome = run_program(program, sandbox)
    assert (outcome.verdict, outcome.level) == (Verdict.PASSED, sandbox), outcome.detail


@pytest.mark.parametrize("program", case_list(PASSES))
def test_harmless_programs_pass_without_a_sandbox(program):
    assert run_program(program, Level.NONE).passed


@pytest.mark.parametrize("program", case_list(FAILS))
def test_programs_that_do_not_reach_their_end_fail(level, program):
    outcome = run_program(program, level)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.detail


def test_an_outcome_contains_the_output(level):
    assert run_program("print('fine')", level).detail == "fine\n"
    assert run_program("assert 1 == 2, 'sums'", level).detail.endswith("AssertionError: sums\n")
    assert run_program("import os; os._exit(3)", level).detail == "ended early with status 3"


def test_time_is_limited(level):
    limits = Limits(wall_seconds=0.6)
    outcome = run_program("while True: pass", level, limits)
    assert (outcome.verdict, outcome.detail) == (Verdict.TIMED_OUT, "stopped after 0.6 s")
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))"
    assert run_program(program, level, Limits(wall_seconds=2.5)).detail == "(4, 4)\n"


@pytest.mark.parametrize(
    ("program", "fact"),
    [
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("while True: print('x' * 10_000)", ""),
        ("open('big', 'wb').write(bytes(2 << 20))", "File too large"),
    ],
    ids=["memory", "output", "file"],
)
def test_memory_output_and_files_are_limited(level, program, fact):
    outcome = run_program(program, level)
    assert outcome.verdict is Verdict.FAILED
    assert fact in outcome.detail
    assert len(outcome.detail) <= 500


def test_a_program_is_not_root_and_has_no_environment(level):
    outcome = run_program("import os; print(os.getuid(), os.getgid(), {*os.environ} - {'TMPDIR'})", level)
    user, group, environment = outcome.detail.split(maxsplit=2)
    assert environment == "set()\n"
    if os.getuid() == 0:
        assert int(user) == int(group) > 60_000
    elif level is Level.NONE:
        assert (int(user), int(group)) == (os.getuid(), os.getgid())


def test_hashes_and_with_them_the_order_of_sets_never_change(level):
    program = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}), hash('lastword'))"
    assert len({run_program(program, level).detail for _ in range(3)}) == 1


@pytest.mark.filterwarnings("ignore:.*run without a sandbox")
def test_outcomes_have_the_order_of_the_programs(level, works):
    works(level)
    programs = [f"import time; time.sleep({i % 3} / 20); assert {i} % 3" for i in range(9)]
    outcomes = run_programs(programs, workers=3, unsafe=True)
    assert [outcome.passed for outcome in outcomes] == [bool(i % 3) for i in range(9)]
    assert {outcome.level for outcome in outcomes} == {level}


def test_no_programs_need_no_sandbox(works):
    works()
    assert run_programs([]) == []


@pytest.mark.parametrize("wrong", [{"wall_seconds": 0}, {"memory_bytes": 0}, {"processes": 0}, {"file_bytes": True}])
def test_bad_limits_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Limits(**wrong)
    with pytest.raises(SettingError, match="workers=0"):
        run_programs([""], workers=0)


def test_bubblewrap_is_used_where_it_works(works):
    works(*Level)
    assert sandbox_level(unsafe=True, plain=True) is Level.BUBBLEWRAP
    assert sandbox_info(limits=Limits(processes=3)) == {
        "level": "bubblewrap", "wall_seconds": 10.0, "memory_bytes": 1 << 30, "processes": 3,
        "file_bytes": 1 << 20, "disk_bytes": 1 << 24,
    }  # fmt: skip


def test_nothing_runs_without_a_sandbox_unless_the_user_accepts_it(works, monkeypatch):
    works(Level.NONE)
    facts = r"bubblewrap is not installed.*Install bubblewrap.*--unsafe-code.*LASTWORD_UNSAFE_CODE=1"
    with pytest.raises(SandboxError, match=facts):
        run_programs(["assert True"])
    with pytest.warns(RuntimeWarning, match="1 model-written programs run without a sandbox"):
        (outcome,) = run_programs(["assert True"], unsafe=True)
    assert (outcome.verdict, outcome.level) == (Verdict.PASSED, Level.NONE)
    monkeypatch.setenv(UNSAFE, "1")
    assert sandbox_level() is Level.NONE
    with pytest.raises(SandboxError):
        sandbox_level(unsafe=False)  # the argument outweighs the environment
    monkeypatch.setenv(UNSAFE, "0")
    with pytest.raises(SandboxError):
        sandbox_level()


def test_plain_programs_run_without_a_sandbox(works):
    works(Level.NONE)
    programs = ["assert sorted('ba') == ['a', 'b']", "assert len('x') == 2", "import os", "f(:"]
    outcomes = run_programs(programs, plain=True)
    assert [outcome.verdict.value for outcome in outcomes] == ["passed", "failed", "refused", "failed"]
    assert outcomes[2].detail == "Import in line 1 is not plain Python"
    assert {outcome.level for outcome in outcomes} == {Level.PLAIN}


@pytest.mark.parametrize("accepted", [{"unsafe": True}, {"plain": True}])
def test_an_unreadable_python_installation_is_an_error(works, accepted):
    works()
    with pytest.raises(SandboxError, match="Python installation readable for the user nobody"):
        sandbox_level(**accepted)


@pytest.fixture
def probe(monkeypatch):
    """A function that sets the results of the next probes of a level and returns those that are left."""
    level_failure.cache_clear()

    def set_results(*results):
        left = list(results)

        def run(program, level, limits):
            result = left.pop(0)
            if isinstance(result, Exception):
                raise result
            return Outcome(result, level, "its output")

        monkeypatch.setattr("lastword.sandbox.runner.run_program", run)
        return left

    yield set_results
    level_failure.cache_clear()


@pytest.mark.parametrize("busy", [Verdict.TIMED_OUT, SandboxError("fork: Resource temporarily unavailable")])
def test_a_busy_machine_gets_no_weaker_level(probe, busy, monkeypatch):
    monkeypatch.setenv(UNSAFE, "1")
    probe(busy)
    with pytest.raises(SandboxError, match="too busy"):
        run_programs(["assert True"], plain=True)
    probe(Verdict.PASSED)
    assert sandbox_level() is Level.BUBBLEWRAP


@pytest.mark.parametrize("missing", [Verdict.FAILED, SandboxError("bwrap: Unknown option --size")])
def test_a_level_is_probed_once_and_the_reason_is_reported(probe, missing, monkeypatch):
    monkeypatch.delenv(UNSAFE, raising=False)
    left = probe(missing, Verdict.PASSED)
    for _ in range(2):
        with pytest.raises(SandboxError, match=r"Unknown option --size|its output"):
            sandbox_level()
    assert left == [Verdict.PASSED]


@pytest.mark.parametrize("level", [Level.BUBBLEWRAP, Level.NONE])
def test_failures_of_the_sandbox_do_not_count_as_failures_of_the_program(level, monkeypatch, tmp_path):
    monkeypatch.setattr("lastword.sandbox.runner.time.sleep", lambda _: None)
    if level is Level.BUBBLEWRAP:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("lastword.sandbox.runner.CHILD", "def main(*_): raise OSError('no interpreter')")
    with pytest.raises(SandboxError, match=r"(bwrap is not on the PATH|no interpreter).*not judged"):
        run_program("assert True", level)


SCORER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
from lastword.sandbox import Level, run_programs, runner
level = Level(sys.argv[1])
runner.level_failure = lambda other: "" if other is level else "missing"
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("call", "programs"),
    [("run_programs([sys.argv[2]] * 9, workers=3, unsafe=True)", 3), ("runner.run_program(sys.argv[2], level)", 1)],
    ids=["many", "one"],
)
def test_an_interrupt_ends_the_programs(level, call, programs):
    mark = f"23.{secrets.randbelow(10**8)}"
    program = f"import os\nos.fork() or os.execv('/bin/sleep', ['sleep', '{mark}'])\nwhile True: pass"
    command = [sys.executable, "-W", "ignore", "-c", SCORER.format(call=call), level.value, program]
    scorer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while len(processes_with(mark)) < programs:
            assert scorer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sent = time.monotonic()
        os.kill(scorer.pid, signal.SIGINT)
        output, _ = scorer.communicate(timeout=20)
        seconds = time.monotonic() - sent
    finally:
        scorer.kill()
        scorer.wait()
    assert output == "interrupted\n"
    assert seconds < 4  # the programs had ten seconds left
    assert processes_with(mark, gone=True) == []


def test_nothing_starts_after_the_end(level):
    running = RunningPrograms()
    running.kill_all()
    with pytest.raises(SandboxError, match="it was stopped"):
        run_program("", level, running=running)
