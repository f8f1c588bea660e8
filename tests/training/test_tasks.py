"""The generators of the embedded task families."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from lastword.errors import TaskError
from lastword.tasks.families import COUNTS, MAX_WORDS, KnownLengths, load_frozen
from training.tasks.freeze import frozen_examples
from training.tasks.generators import GENERATORS, SPLITS, example_stream, generate, split_of
from training.tasks.known_hazard import draw_length
from training.tasks.requests import remove_requests

DIGEST = """
import sys
from hashlib import sha256
from itertools import islice
from training.tasks.generators import example_stream
for name in sys.argv[1:]:
    examples = list(islice(example_stream("train", name, 5), 50))
    print(name, sha256(repr(examples).encode()).hexdigest())
"""


@pytest.fixture(params=GENERATORS)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "word_problems":
        pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    return str(request.param)


def test_a_seed_determines_every_example_in_any_process():
    names = [name for name in GENERATORS if name != "word_problems"]  # see test_the_frozen_prompts_are_generated
    runs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, *names],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) == len(names)


@pytest.mark.parametrize("split", COUNTS)
def test_the_frozen_prompts_are_generated(split, name):
    assert frozen_examples(split, name, 15) == load_frozen(split, name)[:15]


def test_examples_of_seeds_and_splits(name):
    first, second = (list(islice(example_stream("train", name, seed), 20)) for seed in (1, 2))
    assert first != second
    prompts = {split: {e.prompt for e in islice(example_stream(split, name, 3), 20)} for split in SPLITS}
    for split, some in prompts.items():
        assert all(split_of(prompt) == split for prompt in some)
    assert len(prompts["validation"]) == len(prompts["test"]) == 20
    assert not prompts["train"] & (prompts["validation"] | prompts["test"])
    for example in [*first, *second]:
        assert example.family == name
        assert example.prompt.endswith("\n")
        assert example.answer == example.answer.rstrip()
        assert (example.prompt + example.answer).isascii()


def test_unknown_split_is_refused():
    with pytest.raises(TaskError, match=r"'dev'.*validation"):
        example_stream("dev", "algebra")


def test_a_question_has_answers_in_many_styles(name):
    """The style changes the answer and the requests of the prompt, never the question."""
    examples = [generate(name, random.Random(4), random.Random(style)) for style in range(20)]
    assert len({remove_requests(example.prompt) for example in examples}) == 1
    assert len({example.answer for example in examples}) > 3
    rng = random.Random(5)
    assert generate(name, rng, rng) == generate(name, random.Random(5))


@pytest.mark.parametrize(
    "target", ['["fixed", 30]', '["uniform", 10, 40]', '["geometric", 20, 15]', '["two", 10, 50, 4]']
)
def test_known_lengths_are_drawn_from_the_distribution(target):
    lengths, rng = KnownLengths.parse(target), random.Random(0)
    counts = Counter(draw_length(lengths, rng) for _ in range(20_000))
    assert min(counts) >= lengths.minimum
    assert max(counts) <= lengths.maximum <= MAX_WORDS
    for n, p in enumerate(lengths.probability, lengths.minimum):
        assert counts[n] / 20_000 == pytest.approx(p, abs=0.015)
