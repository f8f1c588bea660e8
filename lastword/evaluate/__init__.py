"""Evaluation: samples in, one JSON record each out, whatever the task and the recipe."""

from lastword.evaluate.drifting import drift as drift
from lastword.evaluate.harness import harness_tasks as harness_tasks
from lastword.evaluate.journal import Journal as Journal
from lastword.evaluate.journal import read_records as read_records
from lastword.evaluate.presets import PRESETS as PRESETS
from lastword.evaluate.presets import Preset as Preset
from lastword.evaluate.presets import preset as preset
from lastword.evaluate.records import Answer as Answer
from lastword.evaluate.records import Drift as Drift
from lastword.evaluate.records import Record as Record
from lastword.evaluate.run import evaluate as evaluate
from lastword.evaluate.settings import Setting as Setting
from lastword.evaluate.task import Sample as Sample
from lastword.evaluate.task import Task as Task
from lastword.evaluate.tiny import TINY as TINY
from lastword.evaluate.tiny import tiny_tasks as tiny_tasks
