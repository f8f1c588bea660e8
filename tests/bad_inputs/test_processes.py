"""Programs, answers and limits that are odd or hostile: what each must come to.

A program is judged, at every level that works here, and never ends a run; an answer scores; a setting that
cannot be is refused by name.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lastword.evaluate.code import needed_code
from lastword.sandbox.runner import Level, Limits, Verdict, run_program, run_programs
from lastword.tasks import FAMILIES, load_frozen
from tests.sandbox.conftest import usable

FAILED, TIMED_OUT, PASSED = Verdict.FAILED, Verdict.TIMED_OUT, Verdict.PASSED

# name, program, verdict, phrase of the detail, and limits other than the usual ones
PROGRAMS = [
    ("a null byte", "x = 1\0", FAILED, "null bytes", {}),
    ("half a character", "x = '\ud800'", PASSED, "", {}),
    ("a byte order mark inside", "x = 1\n\ufeff", FAILED, "U+FEFF", {}),
    ("brackets without end", "(" * 10_000, FAILED, "too many nested parentheses", {}),
    ("a term of a million signs", f"x = {'1+' * 500_000}1", FAILED, "RecursionError", {}),
    ("a number of too many digits", f"x = {'9' * 100_000}", FAILED, "digits", {}),
    ("a number that grows", "x = 10\nwhile True: x *= x", TIMED_OUT, "0.5 s", {"wall_seconds": 0.5}),
    ("no end of recursion", "def f(): f()\nf()", FAILED, "RecursionError", {}),
    ("a broken stack", "import ctypes\nctypes.string_at(0)", FAILED, "status", {}),
    ("its own end by signal", "import os\nos.kill(os.getpid(), 15)", FAILED, "status", {}),
    ("its group's end", "import os\nos.killpg(0, 9)", FAILED, "status", {}),
    ("its output closed", "import os\nos.close(1)\nos.close(2)\nassert 0", FAILED, "status", {}),
    ("every file closed", "import os\nos.closerange(0, 64)", FAILED, "status", {}),
    ("output that is no text", "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')", PASSED, "\ufffd", {}),
    ("a long last word", "print('x' * 100_000)", PASSED, "x" * 499, {}),
    ("too long an output", "print('x' * 5_000)", FAILED, "", {"file_bytes": 1_000}),
    ("too much memory", "x = bytearray(10**8)", FAILED, "MemoryError", {"memory_bytes": 10**8}),
    ("a regular expression", "import re\nre.match('(a+)+$', 'a' * 40 + 'b')", TIMED_OUT, "0.5 s",
     {"wall_seconds": 0.5}),
    ("sleep", "import time\ntime.sleep(99)", TIMED_OUT, "0.5 s", {"wall_seconds": 0.5}),
    ("deaf to signals", "import signal, time\nfor s in range(1, 32):\n"
     "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ntime.sleep(99)",
     TIMED_OUT, "0.5 s", {"wall_seconds": 0.5}),
    ("nothing but the judge's words", "import os\nfor n in range(3, 999):\n"
     "    try: os.write(n, b'+\\n' * 40)\n    except OSError: pass", FAILED, "", {}),
    ("a thread that goes on", "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)])"
     ".start()", TIMED_OUT, "0.5 s", {"wall_seconds": 0.5}),
    ("another interpreter's end", "import sys\nsys.exit('done')", FAILED, "done", {}),
    ("an error that is no text", "class E(Exception):\n    def __str__(self): return '\\ud800'\nraise E",
     FAILED, "E", {}),
    ("an error that cannot be shown", "class E(Exception):\n    def __str__(self): raise E\nraise E",
     FAILED, "exception str() failed", {}),
]  # fmt: skip


@pytest.fixture(params=["bubblewrap", "none"])
def level(request):
    return usable(request.param)


@pytest.mark.parametrize(
    ("program", "verdict", "phrase", "limits"), [row[1:] for row in PROGRAMS], ids=[r[0] for r in PROGRAMS]
)
def test_a_program_is_judged(level, program, verdict, phrase, limits):
    outcome = run_program(program, level, Limits(**limits))
    assert (outcome.verdict, phrase in outcome.detail) == (verdict, True), outcome


PLAIN = [
    ("a null byte", "x = 1\0", FAILED, "null bytes"),
    ("half a character", "x = '\ud800'", PASSED, ""),
    ("brackets without end", "(" * 10_000, FAILED, "too many nested parentheses"),
    ("terms by the hundred thousand", f"x = {'1+' * 100_000}1", Verdict.REFUSED, "nested deeper"),
    ("ten million letters", "x" * 10**7, Verdict.REFUSED, "more than 300000 characters"),
    ("lines by the million", "x\n" * 10**6, Verdict.REFUSED, "more than 300000 characters"),
    ("an import", "import this", Verdict.REFUSED, "Import in line 1"),
    ("a number of too many digits", f"x = {'9' * 10_000}", FAILED, "digits"),
    ("a name in other letters", "\uff45\uff56\uff41\uff4c('1')", Verdict.REFUSED, "eval in line 1"),
]


@pytest.mark.parametrize(("program", "verdict", "phrase"), [r[1:] for r in PLAIN], ids=[r[0] for r in PLAIN])
def test_a_program_without_a_sandbox_is_judged_or_refused(program, verdict, phrase):
    outcome = run_program(program, Level.PLAIN)
    assert (outcome.verdict, phrase in outcome.detail) == (verdict, True), outcome


def test_one_bad_program_does_not_touch_the_others(level):
    programs = [program for _, program, verdict, _, limits in PROGRAMS if not limits]
    verdicts = [verdict for _, _, verdict, _, limits in PROGRAMS if not limits]
    assert [outcome.verdict for outcome in run_programs(programs, unsafe=level is Level.NONE)] == verdicts


ANSWERS = [
    ("nothing", ""),
    ("a null byte", "#### 7\0"),
    ("half characters", "\ud800So the answer is \udfff."),
    ("a term of a million letters", f"    return {'1+' * 500_000}1"),
    ("brackets", "(" * 50_000 + ")" * 50_000),
    ("a number of a million digits", "#### " + "9" * 10**6),
    ("a number without end", "Final Answer: The final answer is $" + "1" * 10**6),
    ("ten million letters", "x" * 10**7),
    ("spaces after a number", "#### 1" + " " * 10**6 + "x"),
    ("full stops without end", "So the answer is " + "." * 10**6 + "x"),
    ("full stops and spaces", "So the answer is " + ". " * 500_000 + "x"),
    ("lines that begin like an answer", "So the answer is .\tx\n" * 50_000),
    ("digits of another script", "#### \u0661\u0662"),
    ("numbers by the hundred thousand", "#### 1x\n" * 100_000),
    ("carriage returns", "\r" * 10**5 + "#### 1\r\n"),
    ("quotes without end", '"' * 10**5),
    ("a fence in a fence", "```python\n" * 10_000),
    ("terms chained", "    return " + "+".join(["x"] * 5_000)),
    ("hexadecimal digits", "    return 0x" + "f" * 4_000),
    ("dedents", "".join(" " * (99 - n) + "if x:\n" for n in range(99))),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_was_written_is_an_answer(family):
    example = load_frozen("test", family)[0]
    texts = [text for _, text in ANSWERS]
    assert Verdict.PASSED not in FAMILIES[family].verdicts([example] * len(texts), texts)


@pytest.mark.parametrize("text", [text for _, text in ANSWERS], ids=[name for name, _ in ANSWERS])
def test_whatever_was_written_can_be_read_as_dream_does(text):
    assert isinstance(needed_code("def f(x):", text, "f"), str)


# name, expression, class of the error, phrase of its message
SETTINGS = [
    ("no time", "Limits(wall_seconds=0)", "SettingError", "above 0"),
    ("time before the start", "Limits(wall_seconds=-1.0)", "SettingError", "above 0"),
    ("time without end", "Limits(wall_seconds=float('inf'))", "SettingError", "wall_seconds=inf"),
    ("a time that is no number", "Limits(wall_seconds=float('nan'))", "SettingError", "wall_seconds=nan"),
    ("time in words", "Limits(wall_seconds='10 s')", "WrongTypeError", "must be a number"),
    ("time that is a truth", "Limits(wall_seconds=True)", "WrongTypeError", "wall_seconds=True"),
    ("no memory", "Limits(memory_bytes=0)", "SettingError", "memory_bytes=0"),
    ("half a byte", "Limits(memory_bytes=0.5)", "WrongTypeError", "a whole number"),
    ("memory beyond count", "Limits(memory_bytes=10**30)", "SettingError", "at most"),
    ("processes below none", "Limits(processes=-5)", "SettingError", "processes=-5"),
    ("files that are a truth", "Limits(file_bytes=True)", "WrongTypeError", "file_bytes=True"),
    ("no disk", "Limits(disk_bytes=0)", "SettingError", "disk_bytes=0"),
    ("disk in words", "Limits(disk_bytes='16m')", "WrongTypeError", "disk_bytes='16m'"),
    ("disk beyond count", "Limits(disk_bytes=2**63)", "SettingError", "at most"),
    ("one text for many", "run_programs('print(1)')", "WrongTypeError", "a list of texts"),
    ("bytes for many", "run_programs(b'print(1)')", "WrongTypeError", "a list of texts"),
    ("nothing for many", "run_programs(None)", "WrongTypeError", "a list of texts"),
    ("bytes for a text", "run_programs(['', b''])", "WrongTypeError", "programs[1]=b''"),
    ("a number for a text", "run_programs([1])", "WrongTypeError", "a program as text"),
    ("limits as a number", "run_programs([''], limits=10)", "WrongTypeError", "a Limits(...)"),
    ("limits as a dictionary", "run_programs([''], limits={})", "WrongTypeError", "a Limits(...)"),
    ("nobody at work", "run_programs([''], workers=0)", "SettingError", "workers=0"),
    ("workers in words", "run_programs([''], workers='2')", "WrongTypeError", "a whole number"),
    ("workers beyond count", "run_programs([''], workers=10**9)", "SettingError", "at most"),
    ("risk accepted in words", "run_programs([''], unsafe='no')", "SettingError", "unsafe='no'"),
    ("risk accepted by number", "run_programs([''], unsafe=1)", "WrongTypeError", "unsafe=1"),
    ("plain in words", "sandbox_level(plain='no')", "SettingError", "plain='no'"),
    ("memory for no interpreter", "Limits(memory_bytes=10**4)", "SettingError", "67108864 or more"),
]  # fmt: skip
PLAIN_PYTHON = """
import json, sys
from lastword.errors import LastwordError
from lastword.sandbox import Limits, run_programs, sandbox_level
found = []
for code in json.load(sys.stdin):
    try:
        found.append(["no error", repr(eval(code))])
    except Exception as error:
        raw = "" if isinstance(error, LastwordError) else "raw "
        found.append([raw + type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refused():
    """What each setting comes to where no checker of types stands before our own checks."""
    given = json.dumps([code for _, code, _, _ in SETTINGS])
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_PYTHON], input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {code: found for (_, code, _, _), found in zip(SETTINGS, json.loads(done.stdout))}


@pytest.mark.parametrize(("code", "error", "phrase"), [r[1:] for r in SETTINGS], ids=[r[0] for r in SETTINGS])
def test_a_setting_that_cannot_be_is_refused_by_name(refused, code, error, phrase):
    kind, message = refused[code]
    assert (kind, phrase in message) == (error, True), message
