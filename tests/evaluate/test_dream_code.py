"""Dream's reading of code answers, on answers as models give them and against the authors' own code."""

import ast
import json

import pytest
from hypothesis import given, settings, strategies as st

from lastword.evaluate.code import needed_code
from lastword.evaluate.harness import harness_tasks
from tests.golden.cases import FOLDER

CASES = json.loads((FOLDER / "peers_dream_sanitize.json").read_text())["cases"]
PROMPT = 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """Add up."""\n'
IMPORT = "from typing import List"
TOTAL = 'def total(xs: List[int]) -> int:\n    """Add up."""\n    return sum(xs)'
BODY = "    return sum(xs)\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_program_is_theirs(case):
    ours = needed_code(case["prompt"], case["answer"], case["entry_point"])
    if "raises" in case:  # their program ends here: ours gives a text, whatever it says
        assert isinstance(ours, str)
    else:  # written as the Python at hand writes it
        assert ours == "\n".join(map(ast.unparse, ast.parse(case["output"]).body))


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (BODY, [IMPORT, TOTAL]),
        (f"{BODY}\n\ndef other():\n    return 1\n\nprint(total([1]))", [IMPORT, TOTAL]),
        (f"{BODY}\nThat's how you add up numbers.\nAny questions?", [IMPORT, TOTAL]),
        (f"{BODY}```\nThis adds up.\n```\n1 +\n```", [IMPORT, TOTAL]),
        (f"Of course:\n```python\n{PROMPT}{BODY}```\nDone", [IMPORT, IMPORT, TOTAL]),
        ("\treturn sum(xs)\r\n\r\n\r\nnot code at all", [IMPORT, TOTAL]),
        (
            "    return add(xs)\nSTART = 0\ndef add(xs):\n    return sum(xs, START)\nEND = 1\n",
            [IMPORT, TOTAL.replace("sum", "add"), "START = 0", "def add(xs):\n    return sum(xs, START)"],
        ),
        ("    pass\n", [IMPORT]),  # a function that returns nothing is no answer
        ("", [IMPORT]),
        ("\0(" * 300, [IMPORT]),
    ],
)
def test_what_is_kept(answer, kept):
    assert needed_code(PROMPT, answer, "total") == "\n".join(kept)


def test_a_function_written_twice_counts_as_written_last():
    again = "    return 0\n\ndef total(xs):\n    return sum(xs)\n"
    assert needed_code(PROMPT, again, "total").endswith("def total(xs):\n    return sum(xs)")


def test_only_the_first_hundred_lines_are_read():
    late = "    x = 1\n" * 120 + BODY
    assert "return" not in needed_code(PROMPT, late, "total")


def test_it_decides_what_the_task_scores(hub):
    plain, dream = harness_tasks(["humaneval"])[0], harness_tasks(["humaneval"], dream_code=True)[0]
    sample = dream.samples(1)[0]
    assert sample.stop == ()
    chatty = "    return 2 * n\n\nNow you know.\nGood luck!"
    assert dream.score([sample], [chatty]) == [1.0]
    assert plain.score(plain.samples(1), [chatty]) == [0.0]
    assert dream.version == f"{plain.version}, dream code 2"


def test_answers_of_an_instructed_model_are_cut_first(hub):
    plain, dream = (harness_tasks(["humaneval_instruct"], chat=True, dream_code=dream)[0] for dream in (False, True))
    assert dream.samples(1)[0].stop == plain.samples(1)[0].stop
    assert "\ndef" in dream.samples(1)[0].stop


@pytest.mark.parametrize("term", [" + ".join(["1"] * 600), "0x" + "f" * 6000], ids=["terms", "digits"])
def test_whatever_a_model_writes_is_a_program_to_be_scored(term):
    code = needed_code("def f(x):", f"    return {term}\n", "f")
    assert code.startswith("def f(x):")


PIECES = [*"\n\0(\\", "def f(x):", "    return x", "```", "python\n", "f'{", '"""', "0x" + "f" * 5000]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(st.characters())).map("".join))
def test_any_text_is_read(answer):  # surrogates and null characters among them
    assert isinstance(needed_code("def f(x):", answer, "f"), str)
