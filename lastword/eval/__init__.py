"""Evaluation: samples in, one JSON record each out, whatever the task and the recipe."""

from lastword.eval.compare import paired_p
from lastword.eval.harness import harness_tasks
from lastword.eval.journal import Journal
from lastword.eval.run import evaluate
from lastword.eval.task import Sample, Task
from lastword.eval.tiny import TINY, tiny_tasks

__all__ = [
    "TINY",
    "Journal",
    "Sample",
    "Task",
    "evaluate",
    "harness_tasks",
    "paired_p",
    "tiny_tasks",
]
