"""The check for plain Python: what is refused, what is a syntax error, and that comments stay comments."""

from __future__ import annotations

import pytest

from lastword.sandbox.plain import why_not_plain
from lastword.sandbox.runner import Level, Verdict, run_program
from lastword.tasks import load_frozen

MARK = "\nopen('mark', 'w')\n"


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("family", ["complete_function", "write_function"])
def test_every_reference_answer_is_plain(family, step):
    examples = load_frozen("test", family)
    assert len(examples) == 1200
    for example in examples[::step]:
        head = example.prompt if family == "complete_function" else ""
        assert why_not_plain(f"{head}{example.answer}\n{example.target}\n") is None


REFUSED = [
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
    f"# \ud800{MARK}",
    f"x = {'-' * 100_000}1\nimport os",
    f"x = 0{'+1' * 100_000}\nimport os",
    f"{'x.' * 100_000}x",
]
UNPARSABLE = [
    f"\ufeff{MARK}",
    f"# \0{MARK}",
    f"x = 1\0{MARK}",
    f"\x1a{MARK}",
    f"x = 1\x0b{MARK}",
    f"x = {'9' * 5000}{MARK}",  # more digits than Python reads
    f"{'(' * 300}{')' * 300}{MARK}",
    f"if 1:\n\tx = 1\n        y = 2{MARK}",
    f"def f(:{MARK}",
]
COMMENTS = [
    "# coding: utf-7\n# +AAo-import os+AAo-print(os.getcwd())",
    "# vim: set fileencoding=utf-7 :\n# +AAo-import os+AAo-print(os.getcwd())",
    "#!/bin/python\n# -*- coding: utf_7 -*-\n# +AAo-import os+AAo-print(os.getcwd())",
    "# coding: unicode_escape\n# \\nimport os\\nprint(os.getcwd())",
    "# coding: rot13\n# cevag(1)",
    "# \u2028print(1)\x85print(2)\x0bprint(3)\x0cprint(4)\x1cprint(5)",
]


def short(program):
    return ascii(program[:40])


@pytest.mark.parametrize("program", REFUSED, ids=short)
def test_more_than_plain_python_is_refused(program):
    assert run_program(program, Level.PLAIN).verdict is Verdict.REFUSED


@pytest.mark.parametrize("program", UNPARSABLE, ids=short)
def test_a_program_that_does_not_parse_fails_and_is_not_run(program, monkeypatch):
    monkeypatch.setattr("lastword.sandbox.runner._start", lambda *_: pytest.fail("it was started"))
    outcome = run_program(program, Level.PLAIN)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.detail.startswith("not run: SyntaxError: ")


@pytest.mark.parametrize("program", COMMENTS, ids=short)
def test_a_coding_comment_has_no_effect_in_the_child(program):
    outcome = run_program(program, Level.PLAIN)
    assert (outcome.verdict, outcome.detail) == (Verdict.PASSED, "")
