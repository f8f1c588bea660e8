"""Evaluation: the samples of tasks are decoded with a recipe, and the answers are scored and recorded."""

from lastword.evaluate.comparison import Comparison as Comparison, compare as compare
from lastword.evaluate.harness import harness_tasks as harness_tasks
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
