"""The embedded task families as evaluation tasks: offline, with the core installed."""

from __future__ import annotations

from collections.abc import Sequence

from lastword.errors import TaskError
from lastword.eval.task import Sample, Task
from lastword.tasks import BENCHMARKS, FAMILIES, load_frozen

TINY = BENCHMARKS


class TinyTask:
    """One family's frozen prompts of one split."""

    group, version = "tiny", "version 1"

    def __init__(self, family: str, split: str = "test") -> None:
        self.name, self._examples = family, load_frozen(split, family)

    def samples(self, limit: int | None = None) -> list[Sample]:
        return [
            Sample(self.name, place, example.prompt)
            for place, example in enumerate(self._examples[:limit])
        ]

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]:
        examples = [self._examples[sample.place] for sample in samples]
        return [float(right) for right in FAMILIES[self.name].score_all(examples, texts)]


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
