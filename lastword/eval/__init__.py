"""Evaluation: samples in, one JSON record each out, whatever the task and the recipe."""

from lastword.eval.drifting import drift
from lastword.eval.harness import harness_tasks
from lastword.eval.journal import Journal, read_records
from lastword.eval.presets import PRESETS, Preset, preset
from lastword.eval.records import Answer, Drift, Record
from lastword.eval.run import evaluate
from lastword.eval.settings import Setting
from lastword.eval.task import Sample, Task
from lastword.eval.tiny import TINY, tiny_tasks

__all__ = [
    "PRESETS",
    "TINY",
    "Answer",
    "Drift",
    "Journal",
    "Preset",
    "Record",
    "Sample",
    "Setting",
    "Task",
    "drift",
    "evaluate",
    "harness_tasks",
    "preset",
    "read_records",
    "tiny_tasks",
]
