"""Records of the study are merged without losing whole arms, and nothing is measured twice."""

import json

import pytest

from benchmarks import study
from lastword.errors import SettingError
from lastword.eval.archive import keep
from lastword.tasks import BENCHMARKS, load_frozen

COST = {"passes": 1, "columns": 1, "squares": 1}
JOB = study.Job("tiny-llada-base", "fixed 64", "test", 2)


def arm(
    name="fixed 64", count=2, *, weights="w", tasks=BENCHMARKS, kind="answer", horizon=64, **more
):
    made = json.loads(study.recipe_of(name).to_json()) if isinstance(name, str) else name
    return [
        {
            "kind": kind, "model": "tiny-llada-base", "weights": weights, "recipe": made, "split": "test",
            "task": task, "place": place, "horizon": horizon, "score": 1.0, "finish": "ended", "length": 9,
            "cost": COST, "probe_cost": COST, "rows": 1, "batch_seconds": None, "seed": 0, "hardware": "h",
            "dtype": "d", "prompt_tokens": 1, "prompt": "", **more,
        }
        for task in tasks
        for place in range(count)
    ]  # fmt: skip


def test_arms_of_other_weights_are_dropped_whichever_come_first():
    stale, now = arm(weights="old"), arm("fixed 96")
    assert study.merge(stale, now, "w") == now
    assert study.merge(now, stale, "w") == now


def test_an_arm_stopped_half_way_does_not_replace_a_whole_one():
    kept, half = arm(count=2), arm(count=4)[:-1]
    assert study.merge(kept, half, "w") == kept
    assert study.merge([], half, "w") == []
    assert study.merge(kept, arm(count=4), "w") == arm(count=4)
    assert study.merge(arm(count=4), kept, "w") == arm(count=4)


@pytest.mark.parametrize("name", ["fixed 256", "survival", "two tokens a pass"])
def test_an_arm_stopped_between_two_families_is_not_whole(name):
    assert study.merge([], arm(name, tasks=BENCHMARKS[:-1]), "w") == []


@pytest.mark.parametrize("slots", [64, 71])  # one of them is an arm of its own, too
def test_a_mean_that_only_one_task_has_is_whole(slots):
    mean = json.loads(study.fixed_at(arm(horizon=slots)).to_json())
    one = arm(mean, tasks=BENCHMARKS[:1])
    assert study.merge([], one, "w") == one


def test_one_worker_takes_model_after_model(monkeypatch, tmp_path):
    took = []
    monkeypatch.setattr(study, "_measured", lambda job, *rest, **more: took.append(job) or "")
    study.run(study.jobs(["speed"], 1, []), 1, "cpu", 1, tmp_path)
    assert [job.model for job in took] == [m for m in study.MODELS for _ in range(6)]


def test_a_record_that_is_there_twice_is_no_whole_arm():
    assert study.merge([], [*arm(), arm()[0]], "w") == []


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "shipped", lambda model: "w")

    def write(records):
        keep(records, tmp_path / "tiny-llada-base.jsonl.gz")
        return tmp_path

    return write


def test_what_is_held_is_not_measured_again(kept):
    folder = kept(arm(count=2))
    assert study.left([JOB], folder) == []
    more = study.Job("tiny-llada-base", "fixed 64", "test", 3)
    validation = study.Job("tiny-llada-base", "fixed 64", "validation", 2)
    other = study.Job("tiny-llada-base", "fixed 96", "test", 2)
    assert study.left([JOB, more, validation, other], folder) == [more, validation, other]
    assert study.left([JOB], kept(arm(weights="old"))) == [JOB]


def test_fixed_means_are_held_when_every_task_has_its_own(kept):
    job = study.Job("tiny-llada-base", study.FIXED_MEANS, "test", 2)
    survival = arm("survival", horizon=40)
    at = {"length": {"name": "fixed", "slots": 40}}
    made = {**json.loads(study.recipe_of("fixed 64").to_json()), **at}
    assert study.left([job], kept(survival)) == [job]
    assert study.left([job], kept([*survival, *arm(made, tasks=BENCHMARKS[:4])])) == [job]
    assert study.left([job], kept([*survival, *arm(made)])) == []


def test_unknown_groups_and_models_are_refused():
    for groups, models in ((["papers"], []), (["paper"], ["tiny-gpt"])):
        with pytest.raises(SettingError, match="known:"):
            study.jobs(groups, None, models)
    assert {job.model for job in study.jobs(["paper"], 1, ["tiny-dream-base"])} == {
        "tiny-dream-base"
    }


def test_unseen_prompts_are_those_behind_the_tables():
    (task,) = [task for task in study.Bench("cpu", False).tasks("unseen") if task.name == "algebra"]
    shown = load_frozen("test", "algebra")
    samples = task.samples()
    assert [sample.prompt for sample in samples] == [e.prompt for e in shown[study.SEEN :]]
    assert {(sample.place < 700, sample.split) for sample in samples} == {(True, "unseen")}
    assert task.score(samples[:1], [shown[study.SEEN].answer]) == [1.0]
    for name, group in study.GROUPS.items():
        assert group.split == "unseen" or group.per_family <= study.SEEN, name
