"""Frozen prompts and scorers: all that the package needs of its tasks."""

from __future__ import annotations

import lzma
import re
import statistics
import subprocess
import sys

import pytest

from lastword.errors import TaskError
from lastword.sandbox.runner import Verdict
from lastword.tasks import BENCHMARKS, FAMILIES, families, load_frozen
from lastword.tasks.families import COUNTS, FOLDER, KnownLengths, frozen_path
from training.tasks.generators import split_of

CODE = ("complete_function", "write_function")
WRONG = {
    "word_problems": lambda e: e.answer + "0",
    "algebra": lambda e: e.answer.replace(f"${e.target}$", f"${e.target}1$"),
    "reasoning": lambda e: e.answer.removesuffix("."),
    "complete_function": lambda e: "    return None",
    "write_function": lambda e: e.answer.rsplit("return ", 1)[0] + "return None",
    "known_hazard": lambda e: e.answer + " zebra",
}
# Evaluation needs no generator: reading works where these packages cannot be imported.
BARE = """
import sys
for name in ("torch", "tokenizers", "numpy", "reasoning_gym", "training"):
    sys.modules[name] = None
from lastword.tasks import load_frozen
assert len(load_frozen("validation", "word_problems")) == 300
"""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", COUNTS)
def test_frozen_prompts_are_distinct_and_of_their_split(split, family):
    examples = load_frozen(split, family)
    prompts = {e.prompt for e in examples}
    assert len(prompts) == len(examples) == COUNTS[split]
    assert {split_of(prompt) for prompt in prompts} == {split}


def test_loading_needs_no_third_party_package():
    subprocess.run([sys.executable, "-c", BARE], check=True)


def test_unknown_family_is_refused():
    with pytest.raises(TaskError, match=r"'chess'.*algebra"):
        load_frozen("test", "chess")


def test_the_files_stay_small():
    assert 0 < sum(path.stat().st_size for path in FOLDER.glob("*.xz")) < 1 << 20


@pytest.mark.parametrize(
    "damaged",
    [b"", b"notes", lzma.compress(b"[]\n" * 99)[:40], lzma.compress(b"[1]\n"), lzma.compress(b"\xff")],
    ids=["empty", "notes", "truncated", "other lines", "no text"],
)
def test_a_damaged_file_is_named(monkeypatch, tmp_path, damaged):
    monkeypatch.setattr(families, "FOLDER", tmp_path)
    frozen_path("test", "algebra").write_bytes(damaged)
    with pytest.raises(TaskError, match=r"test-algebra\.jsonl\.xz.* cannot be read"):
        load_frozen("test", "algebra")


@pytest.mark.parametrize("name", FAMILIES)
def test_reference_answers_pass_and_spoiled_ones_fail(name):
    family, examples = FAMILIES[name], load_frozen("test", name)[: 20 if name in CODE else 1200]
    assert {*family.verdicts(examples, [e.answer for e in examples])} == {Verdict.PASSED}
    assert Verdict.PASSED not in family.verdicts(examples, [WRONG[name](e) for e in examples])


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("word_problems", "3 + 4 = 7\n#### {}", True),
        ("word_problems", "so #### {}", False),
        ("algebra", "Final Answer: The final answer is ${}$.", True),
        ("algebra", "The final answer is ${}$.", False),
        ("reasoning", "So the answer is {}.", True),
        ("reasoning", "So the answer is {}", False),
    ],
)
def test_the_final_answer_stands_where_the_benchmark_looks_for_it(name, text, right):
    example = load_frozen("test", name)[0]
    assert FAMILIES[name].score(example, text.format(example.target)) is right


@pytest.mark.parametrize("name", CODE)
def test_a_neighbouring_program_fails(name):
    """Hidden asserts distinguish a program from the next program of its family."""
    examples = list(load_frozen("test", name)[:30])
    shifted = examples[1:] + examples[:1]
    swapped = []
    for example, other in zip(examples, shifted, strict=True):
        right, wrong = (e.target.split("(")[0].removeprefix("assert ") for e in (example, other))
        answer = other.answer.replace(wrong, right)
        if name == "complete_function":  # the neighbour's parameter may have another name
            parameter = other.prompt.split("(")[1].split(":")[0]
            answer = f"    {parameter} = {example.prompt.split('(')[1].split(':')[0]}\n{answer}"
        swapped.append(answer)
    assert FAMILIES[name].verdicts(examples, swapped).count(Verdict.PASSED) <= 3


def test_answers_have_the_stated_lengths(tokenizer):
    everything = []
    for name in BENCHMARKS:
        texts = [e.answer for split in COUNTS for e in load_frozen(split, name)]
        lengths = [len(code.ids) for code in tokenizer.encode_batch(texts)]
        assert min(lengths) >= 10, name
        assert max(lengths) <= 250, name
        assert statistics.pstdev(lengths) > 28, name
        everything += lengths
    assert 60 <= statistics.mean(everything) <= 85
    assert statistics.pstdev(everything) > 32


def test_word_problems_keep_to_small_whole_numbers():
    for example in load_frozen("test", "word_problems"):
        numbers = "".join(c if c.isdigit() else " " for c in example.prompt + example.answer).split()
        assert max(map(int, numbers)) <= 40


@pytest.mark.parametrize("name", ["word_problems", "algebra", "reasoning"])
def test_every_equation_is_true(name):
    count = 0
    for example in load_frozen("test", name):
        for equation in re.findall(r"(?<![\d+*/-] )(?<!\d)\d+ [-+*/] \d+ = \d+", example.answer):
            a, sign, b, _, c = equation.split()
            x, y, z = int(a), int(b), int(c)
            assert {"+": x + y == z, "-": x - y == z, "*": x * y == z, "/": y * z == x}[sign]
            count += 1
    assert count > 500


def test_known_hazard_words_are_tokens(tokenizer):
    for example in load_frozen("validation", "known_hazard"):
        assert len(tokenizer.encode(example.answer).ids) == len(example.answer.split())


def test_only_possible_counts_score():
    family = FAMILIES["known_hazard"]
    example = next(e for e in load_frozen("test", "known_hazard") if '"two"' in e.target)
    word, lengths = example.answer.split()[0], KnownLengths.parse(example.target)
    assert family.score(example, " ".join([word] * lengths.minimum))
    assert not family.score(example, " ".join([word] * (lengths.minimum + 1)))
    assert not family.score(example, "")


def test_unknown_distribution_is_refused():
    with pytest.raises(TaskError, match=r"normal.*uniform"):
        KnownLengths.parse('["normal", 3, 4]')
