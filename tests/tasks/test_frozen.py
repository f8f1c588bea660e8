from __future__ import annotations

import gzip
import subprocess
import sys

import pytest

from lastword.errors import TaskError
from lastword.tasks import FAMILIES, frozen
from lastword.tasks.freeze import frozen_examples
from lastword.tasks.frozen import COUNTS, FOLDER, load_frozen
from lastword.tasks.split import split_of

# Evaluating needs no generator: reading must work where these cannot be imported.
BARE = """
import sys
for name in ("torch", "tokenizers", "numpy", "reasoning_gym"):
    sys.modules[name] = None
from lastword.tasks.frozen import load_frozen
assert len(load_frozen("validation", "word_problems")) == 300
"""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", COUNTS)
def test_frozen_prompts_are_distinct_and_of_their_split(split: str, family: str) -> None:
    examples = load_frozen(split, family)
    prompts = {e.prompt for e in examples}
    assert len(prompts) == len(examples) == COUNTS[split]
    assert {split_of(prompt) for prompt in prompts} == {split}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", COUNTS)
def test_the_generator_still_makes_them(split: str, family: str) -> None:
    if family == "word_problems":
        pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    sample = frozen_examples(split, family, 15)
    assert sample == load_frozen(split, family)[:15]


def test_loading_needs_no_third_party_package() -> None:
    subprocess.run([sys.executable, "-c", BARE], check=True)


def test_unknown_family_is_refused() -> None:
    with pytest.raises(TaskError, match=r"nothing is frozen as test-chess; there are .*test-algebra"):
        load_frozen("test", "chess")


def test_the_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.gz")) < 1 << 20


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"notes",
        gzip.compress(b"[]\n" * 99)[:40],
        gzip.compress(b"[1]\n"),
        gzip.compress(b"\xff"),
    ],
    ids=["empty", "notes", "cut", "other lines", "no text"],
)
def test_a_damaged_file_is_named(monkeypatch, tmp_path, damaged) -> None:
    monkeypatch.setattr(frozen, "FOLDER", tmp_path)
    frozen.path_of("test", "algebra").write_bytes(damaged)
    with pytest.raises(TaskError, match=r"test-algebra\.jsonl\.gz.* cannot be read"):
        load_frozen("test", "algebra")
