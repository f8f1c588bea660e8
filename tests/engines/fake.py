"""Places without processes: workers that do as a script says."""

import random

import lastword
from lastword.engines.engine import Reply
from lastword.engines.places import Died, Failed, Predicted, Ready, Unable, performed
from lastword.engines.worker import Source, Worker

WORKER = Worker(Source("toy"))


def pretended(job):
    """A result as a worker gives it, at no cost."""
    if job.kind == "predict":
        return [Predicted(len(question.prompt), None) for question in job.questions]
    return [Reply(at, f"to {question.seed}", {}) for at, question in enumerate(job.questions)]


class Fake:
    """Workers in this process. `script(event number, job)` says what becomes of a job.

    "done", "failed", "died", or "late": it dies, and its result comes all the same, afterwards.
    """

    def __init__(self, workers=2, script=lambda number, job: "done", seed=0, order=True, run=pretended):
        self.workers, self.script, self.run = workers, script, run
        self.events, self.given, self.starts = [], [], []
        self.generators = random.Random(seed) if not order else None
        self.count, self.closed = 0, False
        self.about = WORKER.about()

    def start(self, worker):
        self.starts.append(worker)
        self.events.append(Ready(worker, self.about))

    def give(self, worker, job):
        self.given.append((worker, job))
        what = self.script(self.count, job)
        self.count += 1
        done = performed(worker, job, self.run) if what in ("done", "late") else None
        if what == "failed":
            self.events.append(Failed(worker, job.number, "it raised"))
        if what in ("died", "late"):
            self.events.append(Died(worker, "killed"))
        if done:
            self.events.append(done)

    def wait(self, seconds):
        if not self.events:
            return []
        at = self.generators.randrange(len(self.events)) if self.generators else 0
        return [self.events.pop(at)]

    def awaited(self):
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
        self.events.append(Died(worker, "no memory") if dies else Ready(worker, self.about))


class Lacking(Fake):
    """A worker finds no model."""

    def start(self, worker):
        self.events.append(Unable(worker, "there is no folder 'x'"))


RECIPE = lastword.Recipe(length=lastword.Survival(limit=12))
