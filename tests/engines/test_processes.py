"""Workers in processes give the same replies and records as this process, also if one is killed."""

import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from itertools import chain

import pytest

import lastword
from lastword.cli.options import EngineOptions
from lastword.engines import GenerationRequest, LocalEngine, ModelSource, ProcessWorkers, WorkerPool
from lastword.errors import EngineError, LastwordError, SettingError
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.models.toy import Toy
from tests.engines.fake import RECIPE
from tests.engines.replies import TIMES, Spelling, generate, make_requests

DEADLY = 25  # the letter z
TASK = Spelling(count=24)
WITHOUT = (*TIMES, "hardware")  # hardware includes the number of threads


class Deadly(Toy):
    """A toy that kills its process when it reads a z."""

    def __call__(self, tokens, read, **more):
        if (tokens[:, 0] == DEADLY).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(tokens, read, **more)


@dataclass(frozen=True)
class DeadlySource(ModelSource):
    def load(self):
        return Deadly()


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(ProcessWorkers(ModelSource("toy"), 2)) as engine:
        yield engine


def run(path, engine=None, **options):
    return evaluate(lastword.load("toy"), "toy", [TASK], RECIPE, Journal(path), engine=engine, **options)


@pytest.mark.slow
def test_processes_reply_like_this_process(pool, toy):
    requests = make_requests(30)
    expected = generate(LocalEngine(toy), requests, RECIPE, 4, WITHOUT)
    assert generate(pool, requests, RECIPE, 4, WITHOUT) == expected
    (reply,) = generate(pool, make_requests(1), RECIPE).values()
    assert reply[1]["hardware"].endswith(", 1 threads")


@pytest.mark.slow
def test_a_killed_worker_changes_no_record(pool, tmp_path):
    killed = []

    def kill(done, total):
        if done and not killed:
            killed.append(pool.backend._processes[0][0].pid)
            os.kill(killed[0], signal.SIGKILL)

    local, records = (
        run(tmp_path / "a.jsonl", max_batch_size=2),
        run(tmp_path / "b.jsonl", pool, max_batch_size=2, progress=kill),
    )
    assert killed
    for record, expected in zip(records, local, strict=True):
        differing = dict.fromkeys(WITHOUT)
        assert asdict(record) | differing == asdict(expected) | differing
    lines = (tmp_path / "b.jsonl").read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == 24


@pytest.mark.full
def test_a_request_that_kills_its_process_fails_alone(toy):
    requests = make_requests(9)
    with WorkerPool(ProcessWorkers(DeadlySource("toy"), 2)) as engine:
        replies = generate(engine, requests | {"bad": GenerationRequest([DEADLY], seed=0)}, RECIPE, 2, WITHOUT)
    reason = replies.pop("bad")[2]
    assert "3 workers failed while they decoded it" in reason
    assert "SIGKILL" in reason
    assert replies == generate(LocalEngine(toy), requests, RECIPE, 2, WITHOUT)


@pytest.mark.slow
def test_a_worker_without_its_model_is_an_error():
    with WorkerPool(ProcessWorkers(ModelSource("no/such/folder"), 1)) as engine:
        with pytest.raises(EngineError, match="worker 0 cannot load the model: there is no folder"):
            _ = engine.model_info
        process, _ = engine.backend._processes[0]
    assert not process.is_alive()


def test_the_engine_of_another_model_is_rejected(tmp_path):
    other = LocalEngine(lastword.load("tiny-llada-base", device="cpu"))
    with pytest.raises(SettingError, match="is not the model of its engine"):
        run(tmp_path / "a.jsonl", other)


class Failing(LocalEngine):
    """An engine in which every third request fails."""

    def generate(self, requests, recipe, *, max_batch_size):
        replies = chain.from_iterable(super().generate(requests, recipe, max_batch_size=max_batch_size))
        for at, reply in enumerate(replies):
            yield [replace(reply, text="", details={}, error="it died") if at % 3 == 0 else reply]


def test_failed_samples_are_reported_last_and_repeated_by_the_next_run(tmp_path, toy):
    path = tmp_path / "a.jsonl"
    with pytest.raises(EngineError, match=r"8 of 24 samples failed .*spelling \d+ \(it died\)"):
        run(path, Failing(toy), max_batch_size=6)
    assert len(path.read_bytes().splitlines()) == 16
    assert len(run(path)) == 24
    assert len(path.read_bytes().splitlines()) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "slurm"}, "engine"),
        ({"workers": 2}, "--workers 2 was given with --engine local"),
        ({"engine": "processes", "address": "auto"}, "give --engine ray"),
        ({"engine": "openai"}, "needs --base-url"),
    ],
)
def test_wrong_options_are_rejected(options, message):
    with pytest.raises(LastwordError, match=message):
        EngineOptions(**options)


@pytest.mark.parametrize("options", [{"workers": 0}, {"threads": 2000}])
def test_wrong_numbers_are_rejected(options):
    with pytest.raises(LastwordError, match=f"{next(iter(options))} must be a whole number"):
        EngineOptions("processes", options.get("workers")).open(ModelSource("toy"), options.get("threads"))


@pytest.mark.skipif(sys.platform != "linux", reason="CPU affinity exists on Linux only")
def test_the_default_is_one_worker_per_core():
    assert ProcessWorkers(ModelSource("toy", device="cpu")).num_workers == len(os.sched_getaffinity(0))
    assert ProcessWorkers(ModelSource("toy", device="cpu"), 3, threads=2).num_workers == 3
