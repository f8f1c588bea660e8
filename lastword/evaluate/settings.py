"""Setting: some benchmarks, and everything that decides how they are asked and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastword.errors import TaskError
from lastword.evaluate.harness import check_names, harness_tasks
from lastword.evaluate.task import Task
from lastword.evaluate.tiny import is_tiny, tiny_tasks
from lastword.recipe.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    """Benchmarks by name that share a recipe. None is the benchmark's own choice."""

    tasks: tuple[str, ...]
    recipe: Recipe
    shots: int | None = None
    score: str | None = None  # as the harness writes it: "metric,filter"
    dream_code: bool = False  # read code answers as Dream's authors do

    def load(self, *, split: str = "test", chat: bool = False) -> list[Task]:
        """The tasks, datasets and all; embedded ones first."""
        check_tasks(self.tasks, split)
        tiny = [name for name in self.tasks if is_tiny(name)]
        rest = [name for name in self.tasks if not is_tiny(name)]
        if tiny and (self.shots is not None or self.score or self.dream_code):
            raise TaskError(f"{tiny[0]} is embedded; it takes no examples and has one score")
        found = tiny_tasks(tiny, split) if tiny else []
        if rest:
            found += harness_tasks(
                rest, shots=self.shots, chat=chat, score=self.score, dream_code=self.dream_code
            )
        return found


def check_tasks(names: Sequence[str], split: str = "test") -> None:
    """Refuse unknown names and splits before a model is loaded."""
    rest = [name for name in names if not is_tiny(name)]
    if rest:
        check_names(rest)
        if split != "test":
            raise TaskError(
                f"split {split!r} was asked of {rest[0]}; only the embedded tasks have one to choose "
                "settings on: leave it out"
            )
