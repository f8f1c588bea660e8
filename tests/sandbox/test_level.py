"""Which sandbox is chosen, what happens where there is none, and what plain Python is."""

from __future__ import annotations

import pytest

from lastword.errors import SandboxError
from lastword.sandbox.bubblewrap import bubblewrap
from lastword.sandbox.level import PROBE, UNSAFE, sandbox_level
from lastword.sandbox.level import works as level_works
from lastword.sandbox.outcome import Level, Outcome, Verdict
from lastword.sandbox.plain import why_not_plain
from lastword.sandbox.programs import run_programs
from lastword.sandbox.runner import run_one
from lastword.sandbox.sight import Sight
from lastword.tasks.frozen import load_frozen

CODE = ("complete_function", "write_function")


@pytest.fixture
def works(monkeypatch):
    """Machines on which only the given levels work."""
    monkeypatch.delenv(UNSAFE, raising=False)

    def only(*levels):
        monkeypatch.setattr("lastword.sandbox.level.works", lambda level: level in levels)

    return only


def test_the_strongest_level_that_works_is_used(works):
    works(*Level)
    assert sandbox_level(unsafe=True, plain=True) is Level.BUBBLEWRAP
    works(Level.NAMESPACES, Level.NONE)
    assert sandbox_level(unsafe=True, plain=True) is Level.NAMESPACES


def test_nothing_runs_without_a_sandbox_unless_accepted(works, monkeypatch):
    works(Level.NONE)
    with pytest.raises(SandboxError, match=r"Install bubblewrap.*--unsafe-code.*UNSAFE_CODE=1"):
        run_programs(["assert True"])
    with pytest.warns(RuntimeWarning, match="1 model-written programs run without one"):
        (outcome,) = run_programs(["assert True"], unsafe=True)
    assert (outcome.verdict, outcome.level) == (Verdict.PASSED, Level.NONE)
    monkeypatch.setenv(UNSAFE, "1")
    assert sandbox_level() is Level.NONE
    with pytest.raises(SandboxError):
        sandbox_level(unsafe=False)  # said in code, it outweighs the environment
    monkeypatch.setenv(UNSAFE, "0")
    with pytest.raises(SandboxError):
        sandbox_level()


def test_where_not_even_a_child_process_works_is_said(works):
    works()
    for choice in ({"unsafe": True}, {"plain": True}):
        with pytest.raises(SandboxError, match="nobody can read the Python installation"):
            sandbox_level(**choice)


def test_a_bare_child_works_everywhere():
    assert level_works(Level.NONE), run_one(PROBE, Level.NONE)


@pytest.fixture
def probes(monkeypatch):
    """What the probe of a level comes to, one after another, on a machine not yet asked."""
    monkeypatch.setattr("lastword.sandbox.level._found", {})

    def say(*results):
        left = list(results)

        def run_one(program, level, limits):
            result = left.pop(0)
            if isinstance(result, Exception):
                raise result
            return Outcome(result, level, "what it printed")

        monkeypatch.setattr("lastword.sandbox.level.run_one", run_one)
        return left

    return say


def test_a_probe_that_times_out_is_made_again(probes):
    left = probes(Verdict.TIMED_OUT, Verdict.PASSED, Verdict.FAILED)
    assert level_works(Level.NAMESPACES)
    assert level_works(Level.NAMESPACES)  # kept
    assert left == [Verdict.FAILED]


@pytest.mark.parametrize("busy", [Verdict.TIMED_OUT, SandboxError("fork: Resource temporarily unavailable")])
def test_a_busy_machine_is_not_one_without_a_sandbox(probes, busy, monkeypatch):
    monkeypatch.setenv(UNSAFE, "1")
    probes(SandboxError("bwrap is not on the PATH"), busy, busy)
    with pytest.raises(SandboxError, match="'namespaces' works here could not be found out"):
        run_programs(["assert True"], plain=True)
    probes(Verdict.PASSED)
    assert sandbox_level() is Level.NAMESPACES


@pytest.mark.parametrize("missing", [Verdict.FAILED, SandboxError("unshare: not permitted")])
def test_a_sandbox_that_is_not_there_is_not_tried_again(probes, missing):
    left = probes(missing, Verdict.PASSED)
    assert not level_works(Level.NAMESPACES)
    assert not level_works(Level.NAMESPACES)
    assert left == [Verdict.PASSED]


def test_embedded_code_is_scored_without_a_sandbox(works):
    works(Level.NONE)
    programs = ["assert sorted('ba') == ['a', 'b']", "assert len('x') == 2", "import os", "f(:"]
    outcomes = run_programs(programs, plain=True)
    assert [outcome.verdict.value for outcome in outcomes] == [
        "passed", "failed", "refused", "failed",
    ]  # fmt: skip
    assert outcomes[2].detail == "Import in line 1 is not plain Python"
    assert {outcome.level for outcome in outcomes} == {Level.PLAIN}


@pytest.mark.parametrize("family", CODE)
def test_every_reference_answer_is_plain(family):
    examples = load_frozen("test", family)
    head = "{e.prompt}" if family == "complete_function" else ""
    assert len(examples) == 1200
    for e in examples:
        assert why_not_plain(f"{head.format(e=e)}{e.answer}\n{e.target}\n") is None


@pytest.mark.parametrize(
    "program",
    [
        "import os",
        "from os import path",
        "open('/etc/passwd')",
        "x = [open]",
        "eval('1')",
        "__import__('os')",
        "().__class__.__base__.__subclasses__()",
        "'{0.__class__}'.format(1)",
        "'{x.__class__}'.format_map({})",
        "(x for x in []).gi_frame",
        "(lambda: 0).__globals__",
        "getattr([], 'append')",
        "type([])",
        "vars()",
        "globals()",
        "f'{open}'",
        "f'{[].__class__}'",
        "def f(x=open): pass",
        "def f(x: open): pass",
        "def __build_class__(): pass",
        "class A: pass",
        "match 1:\n    case object(__class__=x): pass",
        "with x: pass",
        "async def f(): pass",
        "try: x\nexcept BaseException: pass",
        "raise SystemExit",
        "breakpoint()",
        "input()",
        "exit()",
        "print(__builtins__)",
        "f(__class__=1)",
        "x = __loader__",
        "@open\ndef f(): pass",
        "'a'.encode('idna')",
        "str(b'a', 'idna')",
        "str((97).to_bytes(1, 'big'), 'idna')",
        "x = 1\rimport os",
        "x = 1\f\r\nimport os",
        "\fimport os",
        "# coding: latin-1\nimport os",
        "\uff4f\uff50\uff45\uff4e('f')",  # identifiers are normalised: this is open
        "[].__\uff43lass__",
        f"x = {'-' * 100_000}1\nimport os",
        f"x = 0{'+1' * 100_000}\nimport os",
        f"{'x.' * 100_000}x",
    ],
    ids=lambda program: ascii(program[:40]),
)
def test_more_than_plain_python_is_seen(program):
    assert why_not_plain(program)
    assert run_one(program, Level.PLAIN).verdict is Verdict.REFUSED


MARK = "\nopen('mark', 'w')\n"


@pytest.mark.parametrize(
    "program",
    [
        f"\ufeff{MARK}",
        f"# \0{MARK}",
        f"x = 1\0{MARK}",
        f"\x1a{MARK}",
        f"x = 1\x0b{MARK}",
        f"x = {'9' * 5000}{MARK}",  # too many digits here, and another number of them elsewhere
        f"{'(' * 300}{')' * 300}{MARK}",
        f"if 1:\n\tx = 1\n        y = 2{MARK}",
        f"def f(:{MARK}",
    ],
    ids=lambda program: ascii(program[:20]),
)
def test_what_does_not_parse_here_is_not_run_without_a_sandbox(program, monkeypatch):
    monkeypatch.setattr("lastword.sandbox.runner._try", lambda *_: pytest.fail("it was run"))
    outcome = run_one(program, Level.PLAIN)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.detail.startswith("not run: SyntaxError: ")


@pytest.mark.parametrize("level", [Level.PLAIN, Level.NONE])
@pytest.mark.parametrize(
    "program",
    [
        "# coding: utf-7\n# +AAo-import os+AAo-print(os.getcwd())",
        "# vim: set fileencoding=utf-7 :\n# +AAo-import os+AAo-print(os.getcwd())",
        "#!/bin/python\n# -*- coding: utf_7 -*-\n# +AAo-import os+AAo-print(os.getcwd())",
        "# coding: unicode_escape\n# \\nimport os\\nprint(os.getcwd())",
        "# coding: rot13\n# cevag(1)",
        "# \u2028print(1)\x85print(2)\x0bprint(3)\x0cprint(4)\x1cprint(5)",
    ],
    ids=ascii,
)
def test_a_comment_is_a_comment_in_the_child_too(program, level):
    outcome = run_one(program, level)
    assert (outcome.verdict, outcome.detail) == (Verdict.PASSED, "")


def test_a_lone_surrogate_hides_nothing():
    assert run_one(f"# \ud800{MARK}", Level.PLAIN).verdict is Verdict.REFUSED


def test_annotations_are_what_they_are_in_any_program():
    program = "def f(x: int): pass\nassert f.__annotations__['x'] is int"
    assert run_one(program, Level.NONE).passed


def test_bubblewrap_is_left_alone_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap(Sight(("/usr",), ()), 1 << 20, ["python3"]) is None
    with pytest.raises(SandboxError, match=r"could not be started.*bwrap is not on the PATH"):
        run_one("", Level.BUBBLEWRAP)


@pytest.mark.parametrize("level", [Level.NAMESPACES, Level.NONE])
def test_what_the_sandbox_does_wrong_is_not_held_against_the_program(level, monkeypatch):
    monkeypatch.setattr("lastword.sandbox.runner.sys.base_prefix", "/nowhere")
    with pytest.raises(SandboxError, match="was not judged"):
        run_one("assert True", level)


def test_where_no_sandbox_works_each_reason_is_said(probes, monkeypatch):
    monkeypatch.delenv(UNSAFE, raising=False)
    probes(SandboxError("bwrap: Unknown option --size"), SandboxError("unshare: not permitted"))
    with pytest.raises(SandboxError) as said:
        sandbox_level()
    assert "(bubblewrap: bwrap: Unknown option --size; namespaces: unshare: not permitted)" in str(said.value)
