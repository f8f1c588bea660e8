"""A folder that stands for the hub: datasets found by name in the working directory, no network.

Rows are written for these tests in each dataset's format, but where `DATA` holds the real ones.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

Rows = Iterable[Mapping[str, object]]
REPO = Path(__file__).parent.parent.parent
# The real datasets as JSON lines, where somebody keeps them: gsm8k, bbh, humaneval, mbpp.
DATA = Path(os.environ.get("LASTWORD_DATA") or REPO.parent / "shared" / "data")

BBH = [
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa",
    "dyck_languages", "formal_fallacies", "geometric_shapes", "hyperbaton",
    "logical_deduction_five_objects", "logical_deduction_seven_objects",
    "logical_deduction_three_objects", "movie_recommendation", "multistep_arithmetic_two",
    "navigate", "object_counting", "penguins_in_a_table", "reasoning_about_colored_objects",
    "ruin_names", "salient_translation_error_detection", "snarks", "sports_understanding",
    "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects",
    "web_of_lies", "word_sorting",
]  # fmt: skip
MATH = [
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
    "prealgebra", "precalculus",
]  # fmt: skip


@contextmanager
def in_place(folder: Path, rows: Callable[[str, str], Rows | None]) -> Iterator[Path]:
    """Build the mirror and stand in it, with a cache of its own and no way out of this machine."""
    import datasets

    build(folder, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        patch.setattr(socket.socket, "connect", _refuse)
        yield folder


def _refuse(self: socket.socket, address: object) -> None:
    raise AssertionError(f"something tried to reach {address}")


def build(folder: Path, rows: Callable[[str, str], Rows | None]) -> Path:
    """Lay the mirror out; `rows(dataset/config, split)` gives rows, or None for what is not there."""
    _dataset(folder / "openai/gsm8k", {"main": ["train", "test"]}, "gsm8k", rows)
    _dataset(folder / "SaylorTwift/bbh", {name: ["test"] for name in BBH}, "bbh", rows)
    both = {name: ["train", "test"] for name in MATH}
    _dataset(folder / "EleutherAI/hendrycks_math", both, "math", rows)
    _dataset(folder / "openai/openai_humaneval", {"openai_humaneval": ["test"]}, "humaneval", rows)
    _dataset(folder / "google-research-datasets/mbpp", {"full": ["test"]}, "mbpp", rows)
    return folder


def _dataset(
    folder: Path, configs: Mapping[str, list[str]], name: str, rows: Callable[[str, str], Rows | None]
) -> None:
    head = ["---", "configs:"]
    for config, splits in configs.items():
        found = {split: rows(f"{name}/{config}", split) for split in splits}
        if any(some is None for some in found.values()):
            continue
        head += [f"- config_name: {config}", "  data_files:"]
        for split, some in found.items():
            path = folder / f"{config}-{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in some or ()))
            head += [f"  - split: {split}", f"    path: {path.name}"]
    if len(head) > 2:
        (folder / "README.md").write_text("\n".join([*head, "---", ""]))


def written(dataset: str, split: str) -> Rows | None:
    """A few rows of ours."""
    name, _, config = dataset.partition("/")
    if name == "gsm8k":
        first = 100 if split == "train" else 0
        return [_sum(first + n) for n in range(12 if split == "train" else 4)]
    if name == "bbh":
        return [{"input": f"Is {n} below 2? ({config})", "target": "Yes" if n < 2 else "No"} for n in range(3)]
    if name == "math":
        return [_equation(n) for n in range(2)]
    return HUMANEVAL if name == "humaneval" else MBPP


def real(dataset: str, split: str) -> Rows | None:
    """All rows of the real datasets, as far as they are there."""
    name, _, config = dataset.partition("/")
    path = DATA / (f"bbh/tasks/{config}.jsonl" if name == "bbh" else f"{name}/{split}.jsonl")
    if not path.is_file():
        return None
    # Not splitlines: some rows hold separators that it takes for line breaks.
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def _sum(n: int) -> dict[str, str]:
    return {
        "question": f"Ada has {n} pears and buys 1,000 more. How many pears has she?",
        "answer": f"She has {n} + 1000 = <<{n}+1000={n + 1000}>>{n + 1000} pears.\n#### {n + 1000:,}",
    }


def _equation(n: int) -> dict[str, str]:
    return {
        "problem": f"Find $x$ if ${n + 2}x = 1$.",
        "solution": f"Dividing by ${n + 2}$ gives $x = \\boxed{{\\frac{{1}}{{{n + 2}}}}}$.",
        "level": "Level 1",
        "type": "Algebra",
    }


HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'def double(n: int) -> int:\n    """Twice n."""\n',
        "entry_point": "double",
        "canonical_solution": "    return 2 * n\n",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'from typing import List\n\n\ndef last(xs: List[int]) -> int:\n    """The last."""\n',
        "entry_point": "last",
        "canonical_solution": "    return xs[-1]\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n",
    },
]
MBPP = [
    {
        "task_id": 11 + n,
        "text": f"Write a function to add {n} to a number.",
        "code": f"def add_{n}(x):\r\n  return x + {n}",
        "test_list": [f"assert add_{n}({x}) == {x + n}" for x in (0, 1, 5)],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    for n in range(3)
]
