"""The pool: every key once, whatever happens to workers; longest predicted first."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine, prediction_recipe
from lastword.engines.pool import MAX_DEATHS, STARTS, WorkerPool, WorkQueue
from lastword.errors import EngineError, LastwordError, SettingError
from lastword.recipe.resolve import resolve
from tests.engines.fake import RECIPE, WORKER, Dying, Fake, Lacking, Mute

TIMES = ("seconds", "batch_seconds", "rows")
SETTLED = resolve(RECIPE, WORKER.model)


def questions(count):
    return {f"q{n}": GenerationRequest([n % 7, n % 5, *range(n % 4)], seed=n) for n in range(count)}


def plain(replies):
    return {
        one.key: (one.text, {k: v for k, v in one.details.items() if k not in TIMES}, one.error)
        for one in replies
    }


def asked(pool, count=20, rows=2):
    return [one for batch in pool.generate(questions(count), SETTLED, max_batch_size=rows) for one in batch]


PRETENDED = {key: (f"to {question.seed}", {}, None) for key, question in questions(20).items()}


def test_a_pool_replies_as_this_process_does():
    local = [
        one
        for batch in LocalEngine(WORKER.model).generate(questions(12), SETTLED, max_batch_size=2)
        for one in batch
    ]
    assert plain(asked(WorkerPool(Fake(2, run=WORKER.run)), 12)) == plain(local)


@pytest.mark.parametrize("order", ["predicted", "round robin"])
@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_every_key_comes_back_once(order, workers):
    replies = asked(WorkerPool(Fake(workers), order=order))
    assert plain(replies) == PRETENDED
    assert len(replies) == len(PRETENDED)


outcomes = st.lists(st.sampled_from(["done", "done", "failed", "died", "late"]), max_size=60)


@settings(max_examples=60, deadline=None)
@given(outcomes, st.integers(1, 4), st.sampled_from(["predicted", "round robin"]), st.integers())
def test_every_key_comes_back_once_and_right_or_failed(script, workers, order, seed):
    """The law: deaths, failures, late results and any order of events."""

    def does(number, job):
        return script[number] if number < len(script) else "done"

    replies = asked(WorkerPool(Fake(workers, does, seed, order=False), order=order))
    assert Counter(one.key for one in replies) == Counter([*questions(20)])
    for one in replies:
        assert one.error or plain([one])[one.key] == PRETENDED[one.key]


def test_one_poisoned_question_takes_no_neighbour_along():
    def poisoned(number, job):
        bad = any(question.seed == 7 for question in job.requests)
        return "died" if bad and job.kind == "answer" else "done"

    places = Fake(2, poisoned)
    found = plain(asked(WorkerPool(places)))
    text, _, reason = found.pop("q7")
    assert (text, reason) == ("", f"{MAX_DEATHS} workers died over it; of the last, killed")
    assert found == {key: own for key, own in PRETENDED.items() if key != "q7"}
    deaths = [job for _, job in places.submitted if poisoned(0, job) == "died"]
    assert len(deaths) == MAX_DEATHS
    assert [len(job.requests) for job in deaths[1:]] == [1, 1]


def test_a_question_that_kills_whoever_probes_it_is_given_up_after_as_many():
    places = Fake(2, lambda number, job: "died" if any(q.seed == 7 for q in job.requests) else "done")
    assert plain(asked(WorkerPool(places)))["q7"][2]
    died = [job for _, job in places.submitted if any(q.seed == 7 for q in job.requests)]
    assert [job.kind for job in died] == ["predict", "answer", "answer"]


def test_what_raises_fails_alone():
    wrong, few = GenerationRequest([10**6], seed=0), questions(5)  # no id of the toy's
    local = LocalEngine(WORKER.model).generate(few, SETTLED, max_batch_size=2)
    found = plain(
        one
        for batch in WorkerPool(Fake(2, run=WORKER.run)).generate(
            {"wrong": wrong, **few}, SETTLED, max_batch_size=2
        )
        for one in batch
    )
    assert "1000000" in found.pop("wrong")[2]
    assert found == plain(one for batch in local for one in batch)


class Said(Fake):
    """Lengths come from the seed, so that the order can be read."""

    def submit(self, worker, job):
        if job.kind == "answer":
            return super().submit(worker, job)
        from lastword.engines.base import PredictedLength, TaskDone

        self.submitted.append((worker, job))
        self.events.append(
            TaskDone(worker, job.task_id, [PredictedLength(q.seed, None) for q in job.requests])
        )


def test_longest_predicted_first_and_less_at_a_time():
    places = Said(2)
    asked(WorkerPool(places), rows=2)
    jobs = [[q.seed for q in job.requests] for _, job in places.submitted if job.kind == "answer"]
    assert [seed for job in jobs for seed in job] == [*range(20)][::-1]
    sizes = [len(job) for job in jobs]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1
    assert sizes[-1] == 1


def test_a_lone_worker_is_given_like_answers_together():
    places = Said(1)
    asked(WorkerPool(places), rows=2)
    jobs = [[q.seed for q in job.requests] for _, job in places.submitted if job.kind == "answer"]
    assert [seed for job in jobs for seed in job] == [*range(20)][::-1]


def test_nothing_is_probed_where_all_are_alike_and_like_prompts_go_together():
    places = Fake(2)
    recipe = replace(SETTLED, length=lastword.Fixed(4))
    list(WorkerPool(places).generate(questions(9), recipe, max_batch_size=2))
    assert {job.kind for _, job in places.submitted} == {"answer"}
    lengths = [len(q.prompt_ids) for _, job in places.submitted for q in job.requests]
    assert lengths == sorted(lengths, reverse=True)


def test_round_robin_deals_out_beforehand():
    handing = WorkQueue(range(7), workers=2, most=2, order="round robin")
    assert [handing.next(0), handing.next(1), handing.next(0), handing.next(0)] == [
        [0, 2], [1, 3], [4, 6], [],
    ]  # fmt: skip
    handing.retire(1)  # whoever is there takes what is left
    assert handing.next(0) == [5]
    assert not handing


def test_a_caller_who_leaves_can_ask_again():
    pool = WorkerPool(Fake(2))
    next(pool.generate(questions(20), SETTLED, max_batch_size=2))
    assert plain(asked(pool)) == PRETENDED


def test_lengths_are_predicted_as_here_and_nobody_probes_twice():
    places = Fake(2, run=WORKER.run)
    pool = WorkerPool(places)
    (found,) = pool.predict_lengths(questions(5), SETTLED, max_batch_size=5)
    (here,) = LocalEngine(WORKER.model).predict_lengths(questions(5), SETTLED, max_batch_size=5)
    assert found == here
    places.submitted.clear()
    list(pool.generate(questions(5), SETTLED, max_batch_size=2))
    assert {job.kind for _, job in places.submitted} == {"answer"}
    assert all(question.plan for _, job in places.submitted for question in job.requests)


def test_plans_that_are_too_many_are_made_again(monkeypatch):
    monkeypatch.setattr("lastword.engines.pool.PLANS", 3)
    places = Fake(2, run=WORKER.run)
    replies = asked(WorkerPool(places), 8)
    assert sum(q.plan is not None for _, j in places.submitted for q in j.requests) == 3
    local = [
        one
        for batch in LocalEngine(WORKER.model).generate(questions(8), SETTLED, max_batch_size=2)
        for one in batch
    ]
    assert plain(replies) == plain(local)


def test_a_canvas_that_is_fixed_and_cut_is_predicted_all_the_same():
    cut = replace(SETTLED, length=lastword.StopAtEnd(lastword.Fixed(12)), block=4)
    assert prediction_recipe(cut).length == lastword.Survival(limit=12)
    assert prediction_recipe(SETTLED) == SETTLED
    assert prediction_recipe(replace(SETTLED, length=lastword.Fixed(5))).length == lastword.Fixed(5)
    places = Fake(2, run=WORKER.run)
    found = [
        one for batch in WorkerPool(places).generate(questions(4), cut, max_batch_size=2) for one in batch
    ]
    local = [
        one
        for batch in LocalEngine(WORKER.model).generate(questions(4), cut, max_batch_size=2)
        for one in batch
    ]
    assert plain(found) == plain(local)
    assert {job.kind for _, job in places.submitted} == {"predict", "answer"}


def test_what_is_wrong_with_every_question_is_raised():
    unsettled = lastword.Recipe(length=lastword.Calibrated(0.9))
    pool = WorkerPool(Fake(1, run=WORKER.run))
    with pytest.raises(SettingError, match="Calibrated was asked for a plan"):
        list(pool.generate(questions(3), unsettled, max_batch_size=2))
    assert len([*pool.generate(questions(3), SETTLED, max_batch_size=4)]) >= 1  # the worker goes on


def test_nobody_ready_is_an_error_that_says_so():
    with pytest.raises(EngineError, match=r"no worker was ready after .*; waited for nobody"):
        asked(WorkerPool(Mute(2), timeout=0.01))


def test_workers_that_only_die_are_left_alone():
    with pytest.raises(EngineError, match="every worker died 3 times"):
        asked(WorkerPool(Dying(2, {0, 1})))
    places = Dying(3, {1})
    assert plain(asked(WorkerPool(places))) == PRETENDED  # the others go on
    assert places.starts.count(1) == STARTS


def test_a_worker_without_the_model_is_an_error():
    with pytest.raises(EngineError, match="worker 0 cannot load the model: there is no folder 'x'"):
        asked(WorkerPool(Lacking(2)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"versions": {"lastword": "0.0.1"}}, "a worker runs lastword 0.0.1"),
        ({"fingerprint": "other"}, "two workers loaded different models"),
        ({"dtype": "bfloat16"}, "two workers loaded different models"),
    ],
)
def test_workers_that_differ_are_refused(change, words):
    places = Fake(2)
    start = places.start

    def started(worker):
        start(worker)
        if worker == 1:
            places.events[-1] = replace(places.events[-1], model_info=replace(places.about, **change))

    places.start = started
    with pytest.raises(EngineError, match=words):
        asked(WorkerPool(places))


@pytest.mark.parametrize("wrong", [{"order": "longest"}, {"timeout": 0.0}])
def test_settings_are_checked(wrong):
    with pytest.raises(LastwordError, match=next(iter(wrong))):
        WorkerPool(Fake(1), **wrong)


def test_leaving_closes():
    places = Fake(1)
    with WorkerPool(places) as pool:
        assert pool.model.default_max_new_tokens == 64
    assert places.closed


def test_nothing_asked_starts_nobody():
    places = Fake(2)
    assert list(WorkerPool(places).generate({}, SETTLED, max_batch_size=2)) == []
    assert not places.starts


@pytest.mark.parametrize(("block", "estimate"), [(None, lastword.Mean()), (4, lastword.Quantile(0.8))])
def test_a_calibration_is_the_same_whoever_answers(block, estimate):
    prompts = ["ab", "abc", "b", "xyz", "hij", "k"] * 2
    drawn = lastword.Sampling(temperature=1.0)  # else the toy never ends
    recipe = lastword.Recipe(length=lastword.Fixed(), block=block, sampling=drawn)
    settings = {"limit": 24, "coverage": 0.5, "recipe": recipe, "rows": 3, "estimate": estimate}
    local = lastword.calibrate(lastword.load("toy"), prompts, **settings)
    pool = WorkerPool(Fake(2, run=WORKER.run))
    assert lastword.calibrate(pool.model, prompts, engine=pool, **settings) == local
