"""Places without processes: workers that do as a script says."""

import random

import lastword
from lastword.engines.base import (
    GenerationReply,
    PredictedLength,
    TaskFailed,
    WorkerDied,
    WorkerLoadFailed,
    WorkerReady,
)
from lastword.engines.local import ModelSource, ModelWorker, run_task

WORKER = ModelWorker(ModelSource("toy"))


def pretended(job):
    """A result as a worker gives it, at no cost."""
    if job.kind == "predict":
        return [PredictedLength(len(question.prompt_ids), None) for question in job.requests]
    return [GenerationReply(at, f"to {question.seed}", {}) for at, question in enumerate(job.requests)]


class Fake:
    """Workers in this process. `script(event number, job)` says what becomes of a job.

    "done", "failed", "died", or "late": it dies, and its result comes all the same, afterwards.
    """

    def __init__(self, workers=2, script=lambda number, job: "done", seed=0, order=True, run=pretended):
        self.num_workers, self.script, self.run = workers, script, run
        self.events, self.submitted, self.starts = [], [], []
        self.generators = random.Random(seed) if not order else None
        self.count, self.closed = 0, False
        self.about = WORKER.model_info()

    def start(self, worker):
        self.starts.append(worker)
        self.events.append(WorkerReady(worker, self.about))

    def submit(self, worker, job):
        self.submitted.append((worker, job))
        what = self.script(self.count, job)
        self.count += 1
        done = run_task(worker, job, self.run) if what in ("done", "late") else None
        if what == "failed":
            self.events.append(TaskFailed(worker, job.task_id, "it raised"))
        if what in ("died", "late"):
            self.events.append(WorkerDied(worker, "killed"))
        if done:
            self.events.append(done)

    def wait(self, seconds):
        if not self.events:
            return []
        at = self.generators.randrange(len(self.events)) if self.generators else 0
        return [self.events.pop(at)]

    def pending(self):
        return "nobody"

    def close(self):
        self.closed = True


class Mute(Fake):
    """Nobody ever gets ready."""

    def start(self, worker):
        self.starts.append(worker)


class Dying(Fake):
    """Workers die before they are ready, all of them or some."""

    def __init__(self, workers, dying):
        super().__init__(workers)
        self.dying = dying

    def start(self, worker):
        self.starts.append(worker)
        dies = worker in self.dying
        self.events.append(WorkerDied(worker, "no memory") if dies else WorkerReady(worker, self.about))


class Lacking(Fake):
    """A worker finds no model."""

    def start(self, worker):
        self.events.append(WorkerLoadFailed(worker, "there is no folder 'x'"))


RECIPE = lastword.Recipe(length=lastword.Survival(limit=12))
