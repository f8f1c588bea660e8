"""Evaluation: the samples of tasks are decoded with a recipe, and the answers are scored and recorded."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lastword.evaluate.comparison import Comparison as Comparison, compare as compare
from lastword.evaluate.journal import Journal as Journal, read_records as read_records
from lastword.evaluate.length_drift import drift as drift
from lastword.evaluate.presets import PRESETS as PRESETS, Preset as Preset, Setting as Setting, preset as preset
from lastword.evaluate.records import Answer as Answer, Drift as Drift, Record as Record
from lastword.evaluate.run import evaluate as evaluate
from lastword.evaluate.tables import by_recipe as by_recipe
from lastword.evaluate.tasks import (
    EmbeddedTask as EmbeddedTask,
    Sample as Sample,
    Task as Task,
    embedded_tasks as embedded_tasks,
)

if TYPE_CHECKING:
    from lastword.evaluate.harness import harness_tasks as harness_tasks


def __getattr__(name: str) -> Callable[..., Any]:
    """Import `harness_tasks` on first use: `python -m lastword.evaluate.harness` warns of an earlier import."""
    if name != "harness_tasks":
        raise AttributeError(f"module 'lastword.evaluate' has no attribute {name!r}")
    from lastword.evaluate.harness import harness_tasks

    return harness_tasks
