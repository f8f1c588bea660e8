"""Tests of the study: complete arms are kept, and kept arms are not measured again."""

import pytest

from benchmarks import study
from benchmarks.arm_files import keep, read_arms
from benchmarks.arms import FIXED_MEANS, GROUPS, MODELS, current_name, recipe_of
from lastword.cli.options import EngineOptions
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal, read_records
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS, load_frozen
from tests.evaluate.made import answer

JOB = study.Job("tiny-llada-base", "fixed 64", "test", 2)


def arm(name="fixed 64", count=2, *, tasks=BENCHMARKS, **fields):
    """Return `count` records per task of an arm or a recipe."""
    recipe = recipe_of(name) if isinstance(name, str) else name
    return [
        answer(**{"model": "tiny-llada-base", "horizon": 64, "recipe": recipe, "task": task, "index": index} | fields)
        for task in tasks
        for index in range(count)
    ]


def complete(records):
    """Return the records of the complete arms."""
    return [record for arm in study.complete_arms(records, "w").values() for record in arm]


def test_names_of_arms_in_earlier_records_are_replaced_by_known_names():
    for old, new in (
        ("two tokens a pass", "two tokens per pass"),
        ("rho-EOS, one token a pass", "rho-EOS, one token per pass"),
        ("MaskGIT, cosine, two a pass", "MaskGIT, cosine, two per pass"),
        ("auto, grow, stop + threshold", "auto, grow, stop + threshold 0.9"),
        ("auto, grow, stop + threshold 0.97", "auto, grow, stop + threshold 0.97"),
    ):
        assert current_name(old) == new
        assert recipe_of(new)


def test_arms_of_other_weights_are_dropped():
    assert complete([*arm(weights="old"), *arm("fixed 96")]) == arm("fixed 96")


def test_an_arm_that_lacks_a_prompt_is_not_complete():
    assert complete(arm(count=4)[:-1]) == []
    assert complete(arm(count=4)) == arm(count=4)


def test_complete_arms_of_raw_records_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "shipped", lambda model: "w")
    Journal(tmp_path / "raw" / "raw.jsonl").append([*arm(), *arm("survival", tasks=BENCHMARKS[:-1])])
    study.keep_all(tmp_path / "raw", tmp_path / "kept")
    assert set(read_arms(tmp_path / "kept", "tiny-llada-base")) == {("answer", "test", recipe_of("fixed 64"))}


@pytest.mark.parametrize("name", ["fixed 256", "survival", "two tokens per pass"])
def test_an_arm_that_lacks_a_family_is_not_complete(name):
    assert complete(arm(name, tasks=BENCHMARKS[:-1])) == []


@pytest.mark.parametrize("slots", [64, 71])  # 64 is also the canvas of an arm
def test_a_fixed_canvas_of_the_mean_of_one_task_is_complete(slots):
    records = arm(study.fixed_at(arm(horizon=slots)), tasks=BENCHMARKS[:1])
    assert complete(records) == records


def test_an_arm_with_a_duplicate_record_is_not_complete():
    assert complete([*arm(), arm()[0]]) == []


def test_a_single_worker_measures_one_model_after_the_other(monkeypatch, tmp_path):
    jobs = []
    monkeypatch.setattr(study, "_measure_in_worker", lambda job, *rest, **options: jobs.append(job) or "")
    study.run(study.jobs(["speed"], 1, []), 1, "cpu", 1, tmp_path)
    assert [job.model for job in jobs] == [model for model in MODELS for _ in GROUPS["speed"].arms]
    assert len(jobs) == 4 * 7


@pytest.mark.parametrize("one_task_per_batch", [True, False])
def test_a_batch_has_prompts_of_one_task_if_requested(monkeypatch, tmp_path, one_task_per_batch):
    """Its seconds then belong to this task."""
    batches = []
    monkeypatch.setattr(study.Bench, "warm_up", lambda *arguments: None)
    monkeypatch.setattr(study, "evaluate", lambda model, name, tasks, *rest, **options: batches.append(tasks) or [])
    job = study.Job("tiny-llada-base", "fixed 64", "test", 2, one_task_per_batch)
    bench = study.Bench("cpu", exclusive=False)
    assert list(study.measure(bench, job, 5, tmp_path)) == []
    names = [[task.name for task in tasks] for tasks in batches]
    assert names == ([[name] for name in BENCHMARKS] if one_task_per_batch else [[*BENCHMARKS]])


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A function that keeps arms in a folder and returns it."""
    monkeypatch.setattr(study, "shipped", lambda model: "w")

    def write(*arms):
        for records in arms:
            keep(records, tmp_path)
        return tmp_path

    return write


def test_kept_arms_are_not_measured_again(kept):
    folder = kept(arm(count=2))
    assert study.missing([JOB], folder) == []
    more = study.Job("tiny-llada-base", "fixed 64", "test", 3)
    validation = study.Job("tiny-llada-base", "fixed 64", "validation", 2)
    other = study.Job("tiny-llada-base", "fixed 96", "test", 2)
    assert study.missing([JOB, more, validation, other], folder) == [more, validation, other]


def test_records_of_other_weights_are_measured_again(kept):
    assert study.missing([JOB], kept(arm(weights="old"))) == [JOB]


def test_fixed_means_are_kept_when_every_task_has_its_mean(kept):
    job = study.Job("tiny-llada-base", FIXED_MEANS, "test", 2)
    survival = arm("survival", horizon=40)
    mean = Recipe.named("fixed").with_choices(length=Fixed(40))
    assert study.missing([job], kept(survival)) == [job]
    assert study.missing([job], kept(arm(mean, tasks=BENCHMARKS[:4]))) == [job]
    assert study.missing([job], kept(arm(mean))) == []


def test_unknown_groups_and_models_are_rejected():
    for groups, models in ((["papers"], []), (["paper"], ["tiny-gpt"])):
        with pytest.raises(SettingError, match="known:"):
            study.jobs(groups, None, models)
    assert {job.model for job in study.jobs(["paper"], 1, ["tiny-dream-base"])} == {"tiny-dream-base"}


def test_unseen_prompts_are_those_that_no_table_uses():
    (task,) = [task for task in study.Bench("cpu", False).tasks("unseen") if task.name == "algebra"]
    unseen = load_frozen("test", "algebra")[study.SHOWN_PROMPTS :]
    samples = task.samples()
    assert [sample.prompt for sample in samples] == [example.prompt for example in unseen]
    assert {(sample.index < 700, sample.split) for sample in samples} == {(True, "unseen")}
    assert task.score(samples[:1], [unseen[0].answer]) == [1.0]
    for name, group in GROUPS.items():
        assert group.split == "unseen" or group.per_family <= study.SHOWN_PROMPTS, name


@pytest.mark.full
def test_workers_of_an_engine_give_the_same_records(tmp_path):
    """The seconds of the records differ."""
    job = study.Job("tiny-llada-base", "fixed 64", "validation", 1)
    for name, options in (("local", EngineOptions()), ("processes", EngineOptions("processes", 2))):
        study.run([job], 4, "cpu", 1, tmp_path / name, options)
    local, processes = (
        {r.task: (r.text, r.score, r.cost, r.weights) for r in read_records(tmp_path / name)}
        for name in ("local", "processes")
    )
    assert local == processes
    assert len(local) == len(BENCHMARKS)
