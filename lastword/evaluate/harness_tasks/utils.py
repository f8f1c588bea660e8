"""Functions of the embedded tasks as tasks of lm-evaluation-harness: their prompts and their scores."""

from __future__ import annotations

from functools import cache
from typing import Any

from datasets import Dataset

from lastword.evaluate.tasks import EmbeddedTask, Sample

family_task = cache(EmbeddedTask)


def frozen_prompts(*, family: str, **metadata: Any) -> dict[str, Dataset]:
    """Return the frozen test prompts of a family."""
    examples = family_task(family).examples
    rows = [
        {"family": family, "index": index, "prompt": example.prompt, "target": example.target}
        for index, example in enumerate(examples)
    ]
    return {"test": Dataset.from_list(rows)}


def score(document: dict[str, Any], answers: list[str]) -> dict[str, float]:
    """Return 1.0 for a correct answer, else 0.0. Programs in answers run in the sandbox."""
    task = family_task(document["family"])
    return {"score": task.score([Sample(task.name, document["index"], document["prompt"])], answers)[0]}
