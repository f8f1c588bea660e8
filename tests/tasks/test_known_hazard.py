from __future__ import annotations

import random
from collections import Counter

import pytest

from lastword.errors import TaskError
from lastword.tasks import FAMILIES
from lastword.tasks.frozen import load_frozen
from lastword.tasks.known_hazard import LONGEST, Lengths

TARGETS = ('["fixed", 30]', '["uniform", 10, 40]', '["geometric", 20, 15]', '["two", 10, 50, 4]')


@pytest.mark.parametrize("target", TARGETS)
def test_hazard_and_distribution_agree(target: str) -> None:
    lengths = Lengths.parse(target)
    assert sum(lengths.probability) == pytest.approx(1)
    survival, mean = 1.0, 0.0
    for k, hazard in enumerate(lengths.hazard(256), 1):
        at = k - lengths.first
        expected = lengths.probability[at] if 0 <= at < len(lengths.probability) else 0
        assert survival * hazard == pytest.approx(expected, abs=1e-9)
        mean += survival
        survival *= 1 - hazard
    assert mean == pytest.approx(lengths.mean)
    assert survival == 0


@pytest.mark.parametrize("target", TARGETS)
def test_draws_follow_the_distribution(target: str) -> None:
    lengths, rng = Lengths.parse(target), random.Random(0)
    counts = Counter(lengths.draw(rng) for _ in range(20_000))
    assert min(counts) >= lengths.first
    assert max(counts) <= lengths.last <= LONGEST
    for n, p in enumerate(lengths.probability, lengths.first):
        assert counts[n] / 20_000 == pytest.approx(p, abs=0.015)


def test_words_are_tokens(tokenizer: object) -> None:
    for example in load_frozen("validation", "known_hazard"):
        ids = tokenizer.encode(example.answer).ids  # type: ignore[attr-defined]
        assert len(ids) == len(example.answer.split())


def test_only_possible_counts_score() -> None:
    family = FAMILIES["known_hazard"]
    example = next(e for e in load_frozen("test", "known_hazard") if '"two"' in e.target)
    word, possible = example.answer.split()[0], Lengths.parse(example.target)
    assert family.score(example, " ".join([word] * possible.first))
    assert not family.score(example, " ".join([word] * (possible.first + 1)))
    assert not family.score(example, "")


def test_unknown_distribution_is_refused() -> None:
    with pytest.raises(TaskError, match="unknown length distribution 'normal'"):
        Lengths.parse('["normal", 3, 4]')
