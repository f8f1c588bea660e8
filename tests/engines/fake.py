"""A backend without processes, whose workers follow a script."""

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

import lastword
from lastword.decoding.forward import TokenCost
from lastword.engines.base import GenerationReply
from lastword.engines.local import ModelSource
from lastword.engines.workers import ModelWorker
from lastword.errors import EngineError
from lastword.policies.length.policy import Plan
from lastword.recipe.resolve import resolve

WORKER = ModelWorker(ModelSource("toy"))
MODEL_INFO = WORKER.load()
RECIPE = resolve(lastword.Recipe(length=lastword.Survival(limit=12)), MODEL_INFO)


def plan_of(slots):
    """Return a plan of a number of slots, with its cost."""
    return Plan(torch.tensor([slots])), TokenCost(0, 0, 0)


def echo(task):
    """Return a result without decoding."""
    if task.kind == "plan":
        return [plan_of(len(request.prompt_ids)) for request in task.requests]
    return [GenerationReply(at, f"to {request.seed}", {}) for at, request in enumerate(task.requests)]


class FakeBackend:
    """Workers in this process. `script(number of the task, task)` is "done", "failed", "died" or "hung".

    `loads(worker)` is the result of loading, or raises; if it is None, or without it, the worker hangs. With
    `shuffle`, tasks end after random delays.
    """

    def __init__(
        self, workers=2, script=lambda number, task: "done", run=echo, loads=lambda worker: MODEL_INFO, shuffle=False
    ):
        self.num_workers, self.script, self.run, self.loads = workers, script, run, loads
        self.submitted, self.starts, self.killed, self.closed = [], [], [], False
        self.threads = ThreadPoolExecutor(workers) if shuffle else None

    def start(self, worker):
        self.starts.append(worker)
        future = self.completed(self.loads, worker) if self.loads else Future()
        return future if not future.done() or future.exception() or future.result() is not None else Future()

    def submit(self, worker, task):
        self.submitted.append((worker, task))
        if self.script(len(self.submitted) - 1, task) == "hung":
            return Future()
        return self.completed(self.outcome, self.script(len(self.submitted) - 1, task), task)

    def completed(self, function, *args):
        if self.threads:
            return self.threads.submit(lambda: (time.sleep(random.random() / 500), function(*args))[1])
        future = Future()
        try:
            future.set_result(function(*args))
        except EngineError as error:
            future.set_exception(error)
        return future

    def outcome(self, outcome, task):
        if outcome == "died":
            raise EngineError("killed")
        return EngineError("it raised") if outcome == "failed" else self.run(task)

    def kill(self, worker):
        self.killed.append(worker)

    def is_placed(self, worker):
        return True

    def requirements(self):
        return "a free GPU"

    def close(self):
        self.closed = True

    def tasks(self, kind="answer"):
        """Return the requests of the tasks of a kind."""
        return [list(task.requests) for _, task in self.submitted if task.kind == kind]
