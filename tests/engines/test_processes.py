"""Workers in processes of their own: the same replies and records, also when one is killed."""

import os
import signal
import sys
from dataclasses import asdict, dataclass

import pytest

import lastword
from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.options import EngineOptions
from lastword.engines.pool import WorkerPool
from lastword.engines.processes import ProcessWorkers
from lastword.errors import EngineError, LastwordError, SettingError
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.evaluate.task import Sample
from lastword.models.toy import Toy
from lastword.recipe.resolve import resolve

TIMES = ("seconds", "batch_seconds", "rows")
RECIPE = resolve(lastword.Recipe(length=lastword.Survival(limit=16)), lastword.load("toy"))
POISON = 25  # the letter z


class Deadly(Toy):
    """A toy that takes its process along when it reads a z."""

    def __call__(self, tokens, read, **rest):
        if (tokens[:, 0] == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(tokens, read, **rest)


@dataclass(frozen=True)
class DeadlySource(ModelSource):
    def load(self):
        return Deadly()


class Spelling:
    name, group, version = "spelling", "spelling", "1"

    def samples(self, limit=None):
        return [Sample("spelling", at, "abc"[: 1 + at % 3] * (1 + at % 5)) for at in range(24)]

    def score(self, samples, texts):
        return [float(len(text) % 2) for text in texts]


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(ProcessWorkers(ModelSource("toy"), 2)) as engine:
        yield engine


def questions(count):
    return {at: GenerationRequest([at % 7, at % 5, *range(at % 4)], seed=at) for at in range(count)}


def plain(batches):
    found = {one.key: one for batch in batches for one in batch}
    return {
        key: (one.text, {k: v for k, v in one.details.items() if k not in TIMES}, one.error)
        for key, one in found.items()
    }


def records(answers):
    return [{k: v for k, v in asdict(one).items() if k not in TIMES} for one in answers]


@pytest.mark.slow
def test_processes_reply_as_this_process_does(pool):
    local = plain(LocalEngine(lastword.load("toy")).generate(questions(30), RECIPE, max_batch_size=4))
    found = plain(pool.generate(questions(30), RECIPE, max_batch_size=4))
    assert {key: own[1].pop("hardware")[-9:] for key, own in found.items()} == dict.fromkeys(
        found, "1 threads"
    )
    for own in local.values():
        own[1].pop("hardware")
    assert found == local


@pytest.mark.slow
def test_an_evaluation_is_the_same_also_when_a_worker_is_killed(pool, tmp_path):
    toy = lastword.load("toy")
    local = evaluate(toy, "toy", [Spelling()], RECIPE, Journal(tmp_path / "a.jsonl"), rows=2)
    killed = []

    def progress(done, total):
        if done and not killed:
            victim = pool.backend._places[0].process
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    journal = Journal(tmp_path / "b.jsonl")
    found = evaluate(pool.model, "toy", [Spelling()], RECIPE, journal, rows=2, engine=pool, progress=progress)
    assert killed
    for one in (*(here := records(local)), *(there := records(found))):
        one.pop("hardware")
    assert here == there
    lines = journal.path.read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == 24


@pytest.mark.full
def test_a_poisoned_question_fails_alone(caplog):
    asked = questions(9) | {"bad": GenerationRequest([POISON], seed=0)}
    with WorkerPool(ProcessWorkers(DeadlySource("toy"), 2)) as engine:
        found = plain(engine.generate(asked, RECIPE, max_batch_size=2))
    reason = found.pop("bad")[2]
    assert "3 workers died over it" in reason
    assert "SIGKILL" in reason
    assert all(failed is None for _, _, failed in found.values())
    assert len(found) == 9


@pytest.mark.slow
def test_a_worker_without_the_model_says_so():
    with WorkerPool(ProcessWorkers(ModelSource("no/such/folder"), 1)) as engine:
        with pytest.raises(EngineError, match="worker 0 cannot load the model: there is no folder"):
            _ = engine.model
        place = engine.backend._places[0].process
    assert not place.is_alive()


def test_another_model_than_the_engines_is_refused(tmp_path):
    other = lastword.load("tiny-llada-base", device="cpu")
    with pytest.raises(SettingError, match="an engine that asks another one"):
        evaluate(
            lastword.load("toy"), "toy", [Spelling()], RECIPE, Journal(tmp_path / "a.jsonl"),
            engine=LocalEngine(other),
        )  # fmt: skip


class GivesUp(LocalEngine):
    """An engine that fails at every third."""

    def generate(self, requests, recipe, *, max_batch_size):
        from dataclasses import replace

        for batch in super().generate(requests, recipe, max_batch_size=max_batch_size):
            yield [
                replace(one, text="", details={}, error="it died") if at % 3 == 0 else one
                for at, one in enumerate(batch)
            ]


def test_what_an_engine_gave_up_on_is_told_last_and_asked_again(tmp_path):
    toy, journal = lastword.load("toy"), Journal(tmp_path / "a.jsonl")
    with pytest.raises(EngineError, match=r"8 of 24 samples failed .*spelling \d+ \(it died\)"):
        evaluate(toy, "toy", [Spelling()], RECIPE, journal, engine=GivesUp(toy), rows=6)
    assert len(journal.done()) == 16
    assert len(evaluate(toy, "toy", [Spelling()], RECIPE, journal)) == 24
    assert len(journal.path.read_bytes().splitlines()) == 24


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine": "slurm"}, "engine"),
        ({"workers": 2}, "--workers 2 was given with --engine local"),
        ({"engine": "processes", "address": "auto"}, "it goes with --engine ray"),
        ({"engine": "processes", "workers": 0}, "workers must be a whole number, 1 or more"),
        ({"engine": "openai"}, "give --base-url"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, words):
    with pytest.raises(LastwordError, match=words):
        EngineOptions(**given)


@pytest.mark.skipif(sys.platform != "linux", reason="CPU affinity is Linux's")
def test_there_is_a_worker_for_every_core_unless_told():
    assert ProcessWorkers(ModelSource("toy", device="cpu")).num_workers == len(os.sched_getaffinity(0))
    assert ProcessWorkers(ModelSource("toy", device="cpu"), 3, threads=2).num_workers == 3
