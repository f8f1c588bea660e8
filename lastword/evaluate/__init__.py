"""Evaluation: tasks are answered with a recipe, and each answer is scored and recorded."""

from lastword.evaluate.harness import harness_tasks as harness_tasks
from lastword.evaluate.journal import Journal as Journal
from lastword.evaluate.journal import read_records as read_records
from lastword.evaluate.length_drift import drift as drift
from lastword.evaluate.presets import PRESETS as PRESETS
from lastword.evaluate.presets import Preset as Preset
from lastword.evaluate.presets import Setting as Setting
from lastword.evaluate.presets import preset as preset
from lastword.evaluate.records import Answer as Answer
from lastword.evaluate.records import Drift as Drift
from lastword.evaluate.records import Record as Record
from lastword.evaluate.run import evaluate as evaluate
from lastword.evaluate.tasks import EmbeddedTask as EmbeddedTask
from lastword.evaluate.tasks import Sample as Sample
from lastword.evaluate.tasks import Task as Task
from lastword.evaluate.tasks import embedded_tasks as embedded_tasks
