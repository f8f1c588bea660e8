"""The embedded task families as evaluation tasks: offline, with the core installed."""

from __future__ import annotations

from collections.abc import Sequence

from lastword.errors import TaskError
from lastword.evaluate.records import Fields
from lastword.evaluate.task import Sample, Task
from lastword.sandbox.runner import Verdict, sandbox_info
from lastword.tasks import BENCHMARKS, FAMILIES, CodeFamily
from lastword.tasks.frozen import load_frozen

TINY = BENCHMARKS


class TinyTask:
    """One family's frozen prompts of one split."""

    group, version = "tiny", "version 1"

    def __init__(self, family: str, split: str = "test") -> None:
        self.name, self.split, self._examples = family, split, load_frozen(split, family)
        self._scores: dict[tuple[int, str], float] = {}
        self._refused: set[tuple[int, str]] = set()

    def samples(self, limit: int | None = None) -> list[Sample]:
        return [
            Sample(self.name, index, example.prompt, split=self.split)
            for index, example in enumerate(self._examples[:limit])
        ]

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]:
        """Recipes often agree to the letter, and running code is slow: no answer is scored twice."""
        asked = [(sample.index, text) for sample, text in zip(samples, texts)]
        new = [one for one in dict.fromkeys(asked) if one not in self._scores]
        examples = [self._examples[index] for index, _ in new]
        texts, family = [text for _, text in new], FAMILIES[self.name]
        if isinstance(family, CodeFamily):
            outcomes = family.run_all(examples, texts)
            right = [outcome.passed for outcome in outcomes]
            refused = (outcome.verdict is Verdict.REFUSED for outcome in outcomes)
            self._refused.update(one for one, was in zip(new, refused) if was)
        else:
            right = family.score_all(examples, texts)
        self._scores.update(zip(new, map(float, right)))
        return [self._scores[one] for one in asked]

    def conditions(self) -> Fields:
        return {"sandbox": sandbox_info(plain=True)} if FAMILIES[self.name].runs_code else {}

    def refused(self, sample: Sample, text: str) -> bool:
        """Whether this answer was not run when it was scored."""
        return (sample.index, text) in self._refused


def is_tiny(name: str) -> bool:
    """Is this an embedded task, or the name of all of them?"""
    return name == "tiny" or name in FAMILIES


def tiny_tasks(names: Sequence[str] = ("tiny",), split: str = "test") -> list[Task]:
    """The tasks of these names; `tiny` stands for all five."""
    families = [family for name in names for family in (TINY if name == "tiny" else (name,))]
    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        raise TaskError(f"there is no task {unknown[0]!r}; known: tiny, {', '.join(FAMILIES)}")
    return [TinyTask(family, split) for family in dict.fromkeys(families)]
