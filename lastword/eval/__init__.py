"""Evaluation: samples in, one JSON record each out, whatever the task and the recipe."""

from lastword.eval.drifting import drift as drift
from lastword.eval.harness import harness_tasks as harness_tasks
from lastword.eval.journal import Journal as Journal
from lastword.eval.journal import read_records as read_records
from lastword.eval.presets import PRESETS as PRESETS
from lastword.eval.presets import Preset as Preset
from lastword.eval.presets import preset as preset
from lastword.eval.records import Answer as Answer
from lastword.eval.records import Drift as Drift
from lastword.eval.records import Record as Record
from lastword.eval.run import evaluate as evaluate
from lastword.eval.settings import Setting as Setting
from lastword.eval.task import Sample as Sample
from lastword.eval.task import Task as Task
from lastword.eval.tiny import TINY as TINY
from lastword.eval.tiny import tiny_tasks as tiny_tasks
