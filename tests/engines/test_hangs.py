"""A worker that hangs is ended and restarted after a deadline, and a request that hangs three workers fails alone."""

import os
import pickle
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import lastword
from lastword.engines import GenerationRequest, LocalEngine, ModelSource, ProcessWorkers, WorkerPool
from lastword.engines.pool import FIRST_DEADLINE, MAX_ATTEMPTS, MIN_DEADLINE, TOLERANCE, TaskDeadlines, WorkerTask
from lastword.errors import EngineError, LastwordError
from lastword.models.toy import Toy
from tests.engines.fake import MODEL_INFO, RECIPE, FakeBackend
from tests.engines.replies import TIMES, generate, make_requests

REQUESTS = make_requests(20)
ECHOED = {key: (f"to {request.seed}", {}, None) for key, request in REQUESTS.items()}
FIXED = lastword.Recipe(length=lastword.Fixed(10))
ENDLESS = 25  # the letter z
WITHOUT = (*TIMES, "hardware")


def answer_task(*prompt_lengths, batch=2, recipe=FIXED):
    return WorkerTask("answer", [GenerationRequest([1] * length, 0) for length in prompt_lengths], recipe, batch)


def test_until_a_task_has_finished_the_deadline_is_long():
    assert TaskDeadlines().seconds(answer_task(5)) == FIRST_DEADLINE


def test_the_deadline_is_a_multiple_of_the_slowest_rate_and_has_a_floor():
    deadlines, task = TaskDeadlines(), answer_task(5, 5, 5, 5)
    assert task.work == (20.0, 4 * 10 * 15)  # two rows at once, one pass per slot
    assert task.max_work == (20.0 + 10, 4 * 10 * 15 + 10 * 15)
    deadlines.finish(task, 0.01)
    assert deadlines.seconds(task) == MIN_DEADLINE
    deadlines.finish(task, 40.0)
    deadlines.finish(task, 20.0)  # a faster one hardly changes it
    assert deadlines.seconds(task) == pytest.approx(TOLERANCE * 40.0 * 30 / 20 * 0.98)
    assert deadlines.seconds(answer_task(5, 5, 5, 5, 5, 5)) > deadlines.seconds(task)


def test_long_prompts_have_longer_deadlines():
    deadlines = TaskDeadlines()
    deadlines.finish(answer_task(5), 40.0)
    assert deadlines.seconds(answer_task(990)) > 10 * deadlines.seconds(answer_task(5))


def test_plans_bound_the_first_answers_only():
    deadlines, plan = TaskDeadlines(), WorkerTask("plan", [GenerationRequest([1] * 5, 0)] * 4, FIXED, 1)
    deadlines.finish(plan, 12.0)
    before = deadlines.seconds(answer_task(5))
    assert MIN_DEADLINE < before < FIRST_DEADLINE
    deadlines.finish(answer_task(5), 0.5)
    assert deadlines.seconds(answer_task(5)) == MIN_DEADLINE


def test_a_given_timeout_replaces_all_deadlines():
    deadlines = TaskDeadlines(3.0)
    deadlines.finish(answer_task(5), 1000.0)
    assert deadlines.seconds(answer_task(5)) == 3.0
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(LastwordError, match="task_timeout"):
            WorkerPool(FakeBackend(1), task_timeout=wrong)


def is_bad(task):
    return any(request.seed == 7 for request in task.requests)


@pytest.mark.parametrize("kinds", [["answer"], ["plan", "answer"]])
def test_a_request_that_hangs_workers_fails_alone(kinds):
    backend = FakeBackend(2, lambda number, task: "hung" if is_bad(task) and task.kind in kinds else "done")
    answers = generate(WorkerPool(backend, task_timeout=0.1), REQUESTS, RECIPE)
    text, _, reason = answers.pop("q7")
    assert text == ""
    assert reason.startswith(f"{MAX_ATTEMPTS} workers failed while they decoded it, the last with: it gave no result")
    assert answers == {key: answer for key, answer in ECHOED.items() if key != "q7"}
    assert len(backend.killed) == MAX_ATTEMPTS + len(kinds) - 1
    assert len(backend.starts) == 2 + len(backend.killed)


def hangs_first(*workers):
    hung = set(workers)

    def loads(worker):
        if worker in hung:
            return hung.discard(worker)
        return MODEL_INFO

    return loads


class SlowTasks(FakeBackend):
    """Workers whose tasks take a while, so that the others' loading becomes overdue."""

    def submit(self, worker, task):
        time.sleep(0.03)
        return super().submit(worker, task)


def test_a_worker_that_hangs_while_it_loads_is_restarted():
    backend = SlowTasks(2, loads=hangs_first(1))
    assert generate(WorkerPool(backend, timeout=0.1), REQUESTS, RECIPE) == ECHOED
    assert (backend.killed, backend.starts) == ([1], [0, 1, 1])


def test_a_worker_without_resources_is_waited_for():
    backend = SlowTasks(2, loads=hangs_first(1))
    backend.is_placed = lambda worker: False
    assert generate(WorkerPool(backend, timeout=0.1), REQUESTS, RECIPE) == ECHOED
    assert not backend.killed


def test_workers_that_hang_whenever_they_load_are_an_error():
    loads = iter([MODEL_INFO])
    backend = FakeBackend(1, lambda number, task: "hung", loads=lambda worker: next(loads, None))
    with pytest.raises(EngineError, match=r"every worker died 3 times.*it gave no result within"):
        generate(WorkerPool(backend, timeout=0.1, task_timeout=0.1), REQUESTS, RECIPE)


class Endless(Toy):
    """A toy that never answers a prompt that begins with a z."""

    def __call__(self, tokens, read, **more):
        while (tokens[:, 0] == ENDLESS).any():
            time.sleep(1)
        return super().__call__(tokens, read, **more)


@dataclass(frozen=True)
class EndlessSource(ModelSource):
    def load(self):
        return Endless()


@dataclass(frozen=True)
class HangsOnce(ModelSource):
    """A source whose second load does not end; it counts its loads in a file."""

    def load(self):
        path = Path(self.name)
        path.write_text(path.read_text() + "1")
        while len(path.read_text()) == 2:
            time.sleep(1)
        return Toy()


@pytest.mark.full
def test_a_stopped_process_is_ended_and_its_prompts_are_answered(toy):
    requests, stopped = make_requests(400), []  # enough for another task of the stopped process
    with WorkerPool(ProcessWorkers(ModelSource("toy"), 2), task_timeout=5.0) as pool:
        replies = {}
        for batch in pool.generate(requests, RECIPE, max_batch_size=2):
            replies |= {reply.key: (reply.text, reply.error) for reply in batch}
            if not stopped:
                stopped.append(pool.backend._processes[0][0].pid)
                os.kill(stopped[0], signal.SIGSTOP)
        assert pool.backend._processes[0][0].pid != stopped[0]
    assert not Path(f"/proc/{stopped[0]}").exists()
    expected = generate(LocalEngine(toy), requests, RECIPE, 2)
    assert replies == {key: (text, error) for key, (text, _, error) in expected.items()}


@pytest.mark.full
def test_an_idle_process_that_is_stopped_does_not_block_the_driver(toy):
    """Its next task does not fit into a pipe that nobody reads."""
    requests = {n: GenerationRequest([n % 7] * 4000, seed=n) for n in range(16)}
    recipe = lastword.Recipe(length=lastword.Fixed(2))
    with WorkerPool(ProcessWorkers(ModelSource("toy"), 1), task_timeout=5.0) as pool:
        _ = pool.model_info
        os.kill(pool.backend._processes[0][0].pid, signal.SIGSTOP)
        replies = [reply for batch in pool.generate(requests, recipe, max_batch_size=8) for reply in batch]
    assert len(replies) == 16


@pytest.mark.full
def test_a_prompt_that_never_ends_fails_alone(toy):
    requests = make_requests(9)
    with WorkerPool(ProcessWorkers(EndlessSource("toy"), 2), task_timeout=3.0) as pool:
        replies = generate(pool, requests | {"bad": GenerationRequest([ENDLESS], seed=0)}, RECIPE, 2, WITHOUT)
    assert "gave no result within 3 s" in replies.pop("bad")[2]
    assert replies == generate(LocalEngine(toy), requests, RECIPE, 2, WITHOUT)


@pytest.mark.full
def test_a_process_that_hangs_while_it_loads_is_replaced(tmp_path):
    loads = tmp_path / "loads"
    loads.write_text("")
    requests = make_requests(2000)
    with WorkerPool(ProcessWorkers(HangsOnce(str(loads)), 2), timeout=15.0) as pool:
        deadline = time.monotonic() + 60
        while len(loads.read_text()) < 3 and time.monotonic() < deadline:
            assert len(generate(pool, requests, RECIPE)) == 2000
    assert len(loads.read_text()) == 3


def test_a_task_is_sent_while_its_deadline_is_computed():
    """Pickling the task's own dictionary would fail if another thread added a cached property to it."""
    task, before = answer_task(5, 7), answer_task(5, 7)
    TaskDeadlines().seconds(task)
    assert task.work
    assert task.max_work
    assert pickle.dumps(task) == pickle.dumps(before)
    assert task.__getstate__() is not vars(task)
