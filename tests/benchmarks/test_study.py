"""Whole arms of the study are kept, a file each, and nothing is measured twice."""

import pytest

from benchmarks import study
from benchmarks.arm_files import keep, read_arms
from benchmarks.arms import FIXED_MEANS, GROUPS, MODELS, recipe_of
from lastword.cli.options import EngineOptions
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal, read_records
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS, load_frozen
from tests.evaluate.made import answer

JOB = study.Job("tiny-llada-base", "fixed 64", "test", 2)


def arm(name="fixed 64", count=2, *, tasks=BENCHMARKS, **more):
    made = recipe_of(name) if isinstance(name, str) else name
    return [
        answer(**{"model": "tiny-llada-base", "horizon": 64, "recipe": made, "task": task, "index": index} | more)
        for task in tasks
        for index in range(count)
    ]


def whole(records):
    return [record for mine in study.whole_arms(records, "w").values() for record in mine]


def test_arms_of_other_weights_are_dropped():
    assert whole([*arm(weights="old"), *arm("fixed 96")]) == arm("fixed 96")


def test_an_arm_stopped_half_way_is_not_whole():
    assert whole(arm(count=4)[:-1]) == []
    assert whole(arm(count=4)) == arm(count=4)


def test_whole_arms_of_raw_records_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "shipped", lambda model: "w")
    Journal(tmp_path / "raw" / "raw.jsonl").append([*arm(), *arm("survival", tasks=BENCHMARKS[:-1])])
    study.keep_all(tmp_path / "raw", tmp_path / "kept")
    assert set(read_arms(tmp_path / "kept", "tiny-llada-base")) == {("answer", "test", recipe_of("fixed 64"))}


@pytest.mark.parametrize("name", ["fixed 256", "survival", "two tokens a pass"])
def test_an_arm_stopped_between_two_families_is_not_whole(name):
    assert whole(arm(name, tasks=BENCHMARKS[:-1])) == []


@pytest.mark.parametrize("slots", [64, 71])  # one of them is an arm of its own, too
def test_a_mean_that_only_one_task_has_is_whole(slots):
    one = arm(study.fixed_at(arm(horizon=slots)), tasks=BENCHMARKS[:1])
    assert whole(one) == one


def test_one_worker_takes_model_after_model(monkeypatch, tmp_path):
    took = []
    monkeypatch.setattr(study, "_measured", lambda job, *rest, **more: took.append(job) or "")
    study.run(study.jobs(["speed"], 1, []), 1, "cpu", 1, tmp_path)
    assert [job.model for job in took] == [m for m in MODELS for _ in range(6)]


def test_a_record_that_is_there_twice_is_no_whole_arm():
    assert whole([*arm(), arm()[0]]) == []


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "shipped", lambda model: "w")

    def write(*arms):
        for records in arms:
            keep(records, tmp_path)
        return tmp_path

    return write


def test_what_is_held_is_not_measured_again(kept):
    folder = kept(arm(count=2))
    assert study.left([JOB], folder) == []
    more = study.Job("tiny-llada-base", "fixed 64", "test", 3)
    validation = study.Job("tiny-llada-base", "fixed 64", "validation", 2)
    other = study.Job("tiny-llada-base", "fixed 96", "test", 2)
    assert study.left([JOB, more, validation, other], folder) == [more, validation, other]


def test_what_other_weights_answered_is_measured_again(kept):
    assert study.left([JOB], kept(arm(weights="old"))) == [JOB]


def test_fixed_means_are_held_when_every_task_has_its_own(kept):
    job = study.Job("tiny-llada-base", FIXED_MEANS, "test", 2)
    survival = arm("survival", horizon=40)
    made = Recipe.named("fixed").with_choices(length=Fixed(40))
    assert study.left([job], kept(survival)) == [job]
    assert study.left([job], kept(arm(made, tasks=BENCHMARKS[:4]))) == [job]
    assert study.left([job], kept(arm(made))) == []


def test_unknown_groups_and_models_are_refused():
    for groups, models in ((["papers"], []), (["paper"], ["tiny-gpt"])):
        with pytest.raises(SettingError, match="known:"):
            study.jobs(groups, None, models)
    assert {job.model for job in study.jobs(["paper"], 1, ["tiny-dream-base"])} == {"tiny-dream-base"}


def test_unseen_prompts_are_those_behind_the_tables():
    (task,) = [task for task in study.Bench("cpu", False).tasks("unseen") if task.name == "algebra"]
    shown = load_frozen("test", "algebra")
    samples = task.samples()
    assert [sample.prompt for sample in samples] == [e.prompt for e in shown[study.SEEN :]]
    assert {(sample.index < 700, sample.split) for sample in samples} == {(True, "unseen")}
    assert task.score(samples[:1], [shown[study.SEEN].answer]) == [1.0]
    for name, group in GROUPS.items():
        assert group.split == "unseen" or group.per_family <= study.SEEN, name


@pytest.mark.full
def test_workers_of_an_engine_give_the_same_arm(tmp_path):
    """Records but for their times, and no seconds are kept."""
    job = study.Job("tiny-llada-base", "fixed 64", "validation", 1)
    for name, options in (("here", EngineOptions()), ("there", EngineOptions("processes", 2))):
        study.run([job], 4, "cpu", 1, tmp_path / name, options)
    here, there = (
        {r.task: (r.text, r.score, r.cost, r.weights) for r in read_records(tmp_path / name)}
        for name in ("here", "there")
    )
    assert here == there
    assert len(here) == len(BENCHMARKS)
