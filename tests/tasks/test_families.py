"""One contract over all task families."""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
from itertools import islice

import pytest

from lastword.errors import ExtraError, TaskError
from lastword.tasks import BENCHMARKS, FAMILIES, request
from lastword.tasks.frozen import load_frozen
from lastword.tasks.split import SPLITS, split_of, stream

CODE = ("complete_function", "write_function")
DIGEST = """
import sys
from hashlib import sha256
from itertools import islice
from lastword.tasks import FAMILIES, stream
for name in sys.argv[1:]:
    examples = list(islice(stream("train", FAMILIES[name], 5), 50))
    print(name, sha256(repr(examples).encode()).hexdigest())
"""
WRONG = {
    "word_problems": lambda e: e.answer + "0",
    "algebra": lambda e: e.answer.replace(f"${e.target}$", f"${e.target}1$"),
    "reasoning": lambda e: e.answer.removesuffix("."),
    "complete_function": lambda e: "    return None",
    "write_function": lambda e: e.answer.rsplit("return ", 1)[0] + "return None",
    "known_hazard": lambda e: e.answer + " zebra",
}


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "word_problems":
        pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    return str(request.param)


def test_a_seed_fixes_every_example_in_any_process() -> None:
    names = [n for n in FAMILIES if n != "word_problems"]
    try:
        FAMILIES["word_problems"].generate(random.Random(0))
        names.append("word_problems")
    except ExtraError:
        pass
    command = [sys.executable, "-c", DIGEST, *names]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": h})
        for h in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.splitlines()) == len(names)


def test_seeds_and_splits_differ(name: str) -> None:
    first, other = (list(islice(stream("train", FAMILIES[name], seed), 20)) for seed in (1, 2))
    assert first != other


def test_splits_share_no_prompt(name: str) -> None:
    prompts = {split: {e.prompt for e in islice(stream(split, FAMILIES[name], 3), 20)} for split in SPLITS}
    for split, found in prompts.items():
        assert all(split_of(prompt) == split for prompt in found)
    assert len(prompts["validation"]) == len(prompts["test"]) == 20
    assert not prompts["train"] & (prompts["validation"] | prompts["test"])


def test_prompts_and_answers_are_shaped_for_joining(name: str) -> None:
    for example in islice(stream("train", FAMILIES[name], 4), 100):
        assert example.family == name
        assert example.prompt.endswith("\n")
        assert example.answer == example.answer.rstrip()
        assert (example.prompt + example.answer).isascii()


def test_unknown_split_is_refused() -> None:
    with pytest.raises(TaskError, match="unknown split 'dev'"):
        stream("dev", FAMILIES["algebra"])


@pytest.mark.parametrize("name", FAMILIES)
def test_reference_answers_pass_and_spoiled_ones_fail(name: str) -> None:
    family, examples = FAMILIES[name], load_frozen("test", name)[: 20 if name in CODE else 1200]
    assert all(family.score_all(examples, [e.answer for e in examples]))
    assert not any(family.score_all(examples, [WRONG[name](e) for e in examples]))


@pytest.mark.parametrize("name", CODE)
def test_a_neighbouring_program_fails(name: str) -> None:
    """Hidden asserts tell a program from the next one of its family."""
    examples = list(load_frozen("test", name)[:30])
    shifted = examples[1:] + examples[:1]
    swapped = []
    for example, other in zip(examples, shifted, strict=True):
        own, foreign = (e.target.split("(")[0].removeprefix("assert ") for e in (example, other))
        answer = other.answer.replace(foreign, own)
        if name == "complete_function":  # the neighbour's parameter may have another name
            parameter = other.prompt.split("(")[1].split(":")[0]
            answer = f"    {parameter} = {example.prompt.split('(')[1].split(':')[0]}\n{answer}"
        swapped.append(answer)
    assert sum(FAMILIES[name].score_all(examples, swapped)) <= 3


def test_answers_have_the_stated_lengths(tokenizer: object) -> None:
    everything = []
    for name in BENCHMARKS:
        texts = [e.answer for split in ("validation", "test") for e in load_frozen(split, name)]
        lengths = [len(code.ids) for code in tokenizer.encode_batch(texts)]  # type: ignore[attr-defined]
        assert min(lengths) >= 10, name
        assert max(lengths) <= 250, name
        assert statistics.pstdev(lengths) > 28, name
        everything += lengths
    assert 60 <= statistics.mean(everything) <= 85
    assert statistics.pstdev(everything) > 32


def test_word_problems_keep_to_small_whole_numbers() -> None:
    for example in load_frozen("test", "word_problems"):
        numbers = "".join(c if c.isdigit() else " " for c in example.prompt + example.answer).split()
        assert max(map(int, numbers)) <= 40


@pytest.mark.parametrize("name", ["word_problems", "algebra", "reasoning"])
def test_every_equation_is_true(name: str) -> None:
    found = 0
    for example in load_frozen("test", name):
        for equation in re.findall(r"(?<![\d+*/-] )(?<!\d)\d+ [-+*/] \d+ = \d+", example.answer):
            a, sign, b, _, c = equation.split()
            x, y, z = int(a), int(b), int(c)
            assert {"+": x + y == z, "-": x - y == z, "*": x * y == z, "/": y * z == x}[sign]
            found += 1
    assert found > 500


@pytest.mark.parametrize("name", FAMILIES)
def test_a_question_can_be_answered_in_another_manner(name: str) -> None:
    """The manner changes the answer and what the prompt says of it, never the question."""
    if name == "word_problems":
        pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    made = [FAMILIES[name].generate(random.Random(4), random.Random(manner)) for manner in range(20)]
    assert len({request.without(example.prompt) for example in made}) == 1
    assert len({example.answer for example in made}) > 3
    one = FAMILIES[name].generate(random.Random(5))
    rng = random.Random(5)
    assert FAMILIES[name].generate(rng, rng) == one
