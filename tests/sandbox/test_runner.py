"""What a program may do and how it is judged, at every level that works here."""

from __future__ import annotations

import os

import pytest

from lastword.errors import SettingError
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Verdict
from lastword.sandbox.programs import run_programs
from lastword.sandbox.runner import run_one

HARMLESS = {
    "nothing": "",
    "an assert": "assert 1 + 1 == 2",
    "a file of its own": "import tempfile; tempfile.TemporaryFile().write(b'b')",
    "the standard library": "import collections, decimal, encodings.idna, json, math, re",
    "its own module": "import dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n    b: 'int'\n"
    "assert pickle.loads(pickle.dumps(A(1))) == A(1)\nassert __name__ == '__main__'",
    "text": "assert 'é'.encode() == b'\\xc3\\xa9'; print('é')",
    "a signal": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('heard'))\n"
    "os.kill(os.getpid(), signal.SIGTERM)",
}
# Without a sandbox, processes are counted with all others of the user.
WITH_CHILDREN = {
    "a thread and a process": "import os, threading\nt = threading.Thread(target=print)\n"
    "t.start(); t.join()\npid = os.fork()\nif not pid: os._exit(0)\nassert os.wait()[0] == pid",
    "a child that ends like it": "import os\nos.fork() and os.wait()",
}
NOT_A_PASS = {
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


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_programs_pass(level, name):
    outcome = run_one(HARMLESS[name], level)
    assert (outcome.verdict, outcome.level) == (Verdict.PASSED, level), outcome.detail


@pytest.mark.parametrize("name", WITH_CHILDREN)
def test_harmless_programs_with_children_pass(sandbox, name):
    assert run_one(WITH_CHILDREN[name], sandbox).passed


@pytest.mark.parametrize("name", NOT_A_PASS)
def test_what_does_not_come_to_its_end_fails(level, name):
    outcome = run_one(NOT_A_PASS[name], level)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.detail


def test_an_outcome_shows_what_was_printed(level):
    assert run_one("print('fine')", level).detail == "fine\n"
    assert run_one("assert 1 == 2, 'sums'", level).detail.endswith("AssertionError: sums\n")
    assert run_one("import os; os._exit(3)", level).detail == "ended early with status 3"


def test_a_program_that_does_not_end_is_stopped(level):
    outcome = run_one("while True: pass", level, Limits(wall_seconds=1.0))
    assert (outcome.verdict, outcome.detail) == (Verdict.TIMED_OUT, "stopped after 1 s")


def test_a_program_is_not_root_and_has_no_environment(level):
    outcome = run_one("import os; print(os.getuid(), os.getgid(), dict(os.environ))", level)
    user, group, environment = outcome.detail.split(maxsplit=2)
    assert environment == "{}\n"
    nobody = level is not Level.NONE or os.getuid() == 0
    assert (int(user), int(group)) == ((65534, 65534) if nobody else (os.getuid(), os.getgid()))


def test_hashes_and_so_the_order_of_sets_never_change(level):
    program = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}), hash('lastword'))"
    assert len({run_one(program, level).detail for _ in range(3)}) == 1


@pytest.mark.filterwarnings("ignore:no sandbox works here")
def test_results_keep_their_order_whatever_runs_beside_them(level, monkeypatch):
    monkeypatch.setattr("lastword.sandbox.level.works", lambda one: one is level)
    programs = [f"import time; time.sleep({i % 3} / 20); assert {i} % 3" for i in range(9)]
    outcomes = run_programs(programs, workers=3, unsafe=True)
    assert [outcome.passed for outcome in outcomes] == [bool(i % 3) for i in range(9)]
    assert {outcome.level for outcome in outcomes} == {level}


def test_no_programs_need_no_sandbox():
    assert run_programs([]) == []


@pytest.mark.parametrize(
    "wrong", [{"wall_seconds": 0}, {"memory_bytes": 0}, {"processes": 0}, {"file_bytes": True}]
)
def test_bad_limits_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Limits(**wrong)
    with pytest.raises(SettingError, match="workers=0"):
        run_programs([""], workers=0)
