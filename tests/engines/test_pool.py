"""The pool returns each key once, whatever happens to workers, and hands out the longest predicted first."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

import lastword
from lastword.engines import pool as pool_module
from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine
from lastword.engines.pool import MAX_ATTEMPTS, MAX_LOAD_DEATHS, WorkerPool, prediction_recipe
from lastword.errors import EngineError, LastwordError, SettingError
from tests.engines import replies
from tests.engines.fake import MODEL_INFO, RECIPE, WORKER, FakeBackend, echo, plan_of
from tests.engines.replies import make_requests

LOCAL = LocalEngine(lastword.load("toy"))


def generate(engine, requests, recipe=RECIPE):
    return replies.generate(engine, requests, recipe)


REQUESTS = make_requests(20)
ECHOED = {key: (f"to {request.seed}", {}, None) for key, request in REQUESTS.items()}


def test_a_pool_replies_like_the_local_engine():
    requests = make_requests(12)
    assert generate(WorkerPool(FakeBackend(run=WORKER.run)), requests) == generate(LOCAL, requests)


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_each_key_is_returned_once(workers):
    assert generate(WorkerPool(FakeBackend(workers)), REQUESTS) == ECHOED


outcomes = st.lists(st.sampled_from(["done", "done", "failed", "died"]), max_size=60)


@settings(max_examples=30, deadline=None)
@given(outcomes, st.integers(1, 4))
def test_each_key_is_returned_once_with_its_text_or_an_error(script, workers):
    """Deaths, failures and any order of events change no answer."""

    def outcome(number, task):
        return script[number] if number < len(script) else "done"

    answers = generate(WorkerPool(FakeBackend(workers, outcome, shuffle=True)), REQUESTS)
    assert all(answer == ECHOED[key] or answer[2] for key, answer in answers.items())


def is_bad(task):
    return any(request.seed == 7 for request in task.requests)


def test_a_request_that_kills_workers_fails_alone():
    backend = FakeBackend(2, lambda number, task: "died" if is_bad(task) and task.kind == "answer" else "done")
    answers = generate(WorkerPool(backend), REQUESTS)
    text, _, reason = answers.pop("q7")
    assert (text, reason) == ("", f"{MAX_ATTEMPTS} workers failed while they decoded it, the last with: killed")
    assert answers == {key: answer for key, answer in ECHOED.items() if key != "q7"}
    deaths = [len(task.requests) for _, task in backend.submitted if task.kind == "answer" and is_bad(task)]
    assert len(deaths) == MAX_ATTEMPTS
    assert deaths[1:] == [1, 1]


def test_a_request_that_kills_workers_during_the_probe_is_still_decoded():
    backend = FakeBackend(2, lambda number, task: "died" if is_bad(task) else "done")
    assert generate(WorkerPool(backend), REQUESTS)["q7"][2]
    kinds = [task.kind for _, task in backend.submitted if is_bad(task)]
    assert kinds == ["plan"] + ["answer"] * MAX_ATTEMPTS


def test_a_request_that_raises_fails_alone():
    requests = make_requests(5)
    wrong = {"wrong": GenerationRequest([10**6], seed=0)}  # not a token id of the toy
    answers = generate(WorkerPool(FakeBackend(2, run=WORKER.run)), wrong | requests)
    assert "1000000" in answers.pop("wrong")[2]
    assert answers == generate(LOCAL, requests)


def predict_seed(task):
    return [plan_of(request.seed) for request in task.requests] if task.kind == "plan" else echo(task)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_longest_predicted_go_first_in_ever_smaller_tasks(workers):
    backend = FakeBackend(workers, run=predict_seed)
    generate(WorkerPool(backend), REQUESTS)
    assert [request.seed for batch in backend.tasks() for request in batch] == [*range(20)][::-1]
    sizes = [len(batch) for batch in backend.tasks()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] <= 2  # a full batch at most


def test_a_fixed_canvas_needs_no_probes_and_the_longest_prompts_go_first():
    backend = FakeBackend()
    generate(WorkerPool(backend), make_requests(9), replace(RECIPE, length=lastword.Fixed(4)))
    assert not backend.tasks("plan")
    lengths = [len(request.prompt_ids) for batch in backend.tasks() for request in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_a_caller_who_stops_early_can_call_again():
    pool = WorkerPool(FakeBackend())
    next(pool.generate(REQUESTS, RECIPE, max_batch_size=2))
    assert generate(pool, REQUESTS) == ECHOED


def test_predicted_lengths_equal_the_local_ones():
    pool, requests = WorkerPool(FakeBackend(run=WORKER.run)), make_requests(5)
    lengths = {
        key: slots for batch in pool.predict_lengths(requests, RECIPE, max_batch_size=5) for key, slots in batch.items()
    }
    (expected,) = LOCAL.predict_lengths(requests, RECIPE, max_batch_size=5)
    assert lengths == expected


def test_lengths_are_predicted_for_more_prompts_than_may_wait(monkeypatch):
    monkeypatch.setattr(pool_module, "CHUNK", 4)
    monkeypatch.setattr(pool_module, "MAX_WAITING_TOKENS", 6)  # a chunk has more tokens
    backend, requests = FakeBackend(), make_requests(60)
    batches = [*WorkerPool(backend).predict_lengths(requests, RECIPE, max_batch_size=5)]
    predicted = [key for batch in batches for key in batch]
    assert sorted(predicted) == sorted(requests)
    assert {key: slots for batch in batches for key, slots in batch.items()} == {
        key: len(request.prompt_ids) for key, request in requests.items()
    }


def test_requests_are_probed_once():
    backend, requests = FakeBackend(run=WORKER.run), make_requests(5)
    generate(WorkerPool(backend), requests)
    assert sum(map(len, backend.tasks("plan"))) == 5
    assert all(request.plan for batch in backend.tasks() for request in batch)


def test_a_fixed_canvas_that_stops_early_is_predicted():
    stopping = replace(RECIPE, length=lastword.StopAtEnd(lastword.Fixed(12)), block=4)
    assert prediction_recipe(stopping).length == lastword.Survival(limit=12)
    assert prediction_recipe(RECIPE) == RECIPE
    assert prediction_recipe(replace(RECIPE, length=lastword.Fixed(5))).length == lastword.Fixed(5)
    backend, requests = FakeBackend(run=WORKER.run), make_requests(4)
    assert generate(WorkerPool(backend), requests, stopping) == generate(LOCAL, requests, stopping)
    assert backend.tasks("plan")


def test_an_error_that_all_requests_share_stops_the_run_and_the_worker_continues():
    unresolved = lastword.Recipe(length=lastword.Calibrated(0.9))
    pool = WorkerPool(FakeBackend(1, run=WORKER.run))
    with pytest.raises(SettingError, match="Calibrated was used before it was resolved"):
        generate(pool, make_requests(3), unresolved)
    assert generate(pool, make_requests(3))


def dies(*workers):
    def loads(worker):
        if worker in workers:
            raise EngineError("out of memory")
        return MODEL_INFO

    return loads


def reports(**changes):
    return lambda worker: replace(MODEL_INFO, **changes) if worker else MODEL_INFO


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        (None, r"no worker was ready after .*; waited for a free GPU"),
        (dies(0, 1), f"every worker died {MAX_LOAD_DEATHS} times before it was ready.*out of memory"),
        (lambda worker: EngineError("no folder 'x'"), "worker . cannot load the model: no folder 'x'"),
        (reports(versions={"lastword": "0.0.1"}), "a worker runs lastword 0.0.1"),
        (reports(fingerprint="other"), "two workers loaded different models"),
        (reports(dtype="bfloat16"), "two workers loaded different models"),
    ],
)
def test_workers_that_cannot_be_used_stop_the_run(loads, message):
    with pytest.raises(EngineError, match=message):
        generate(WorkerPool(FakeBackend(2, loads=loads), timeout=0.01), REQUESTS)


def test_a_worker_that_only_dies_is_given_up():
    backend = FakeBackend(3, loads=dies(1))
    assert generate(WorkerPool(backend), REQUESTS) == ECHOED
    assert backend.starts.count(1) == MAX_LOAD_DEATHS


def test_settings_are_checked():
    with pytest.raises(LastwordError, match="timeout"):
        WorkerPool(FakeBackend(1), timeout=0.0)


def test_workers_start_with_the_first_request_and_end_with_the_block():
    backend = FakeBackend(1)
    with WorkerPool(backend) as pool:
        assert list(pool.generate({}, RECIPE, max_batch_size=2)) == []
        assert not backend.starts
        assert pool.model_info.default_max_new_tokens == 64
    assert backend.closed


@pytest.mark.parametrize(("block", "estimate"), [(None, lastword.Mean()), (4, lastword.Quantile(0.8))])
def test_a_pool_calibrates_like_the_local_engine(block, estimate):
    prompts = ["ab", "abc", "b", "xyz", "hij", "k"] * 2
    sampling = lastword.Sampling(temperature=1.0)  # greedy answers of the toy never end
    recipe = lastword.Recipe(length=lastword.Fixed(), block=block, sampling=sampling)
    options = {"limit": 24, "coverage": 0.5, "recipe": recipe, "max_batch_size": 3, "estimate": estimate}
    pool = WorkerPool(FakeBackend(run=WORKER.run))
    calibration = lastword.calibrate(pool.model_info, prompts, engine=pool, **options)
    assert calibration == lastword.calibrate(lastword.load("toy"), prompts, **options)
