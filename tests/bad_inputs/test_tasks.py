"""Tasks of users that break their contract, and arguments of an evaluation that would have no effect."""

from dataclasses import replace

import pytest

import lastword
from lastword.errors import SettingError, TaskError
from lastword.evaluate import Journal, Sample, embedded_tasks, evaluate


class Copies:
    """A task whose samples and scores are given."""

    name, group, version = "copies", "copies", "1"

    def __init__(self, samples=None, scores=None):
        self._samples, self._scores = samples, scores

    def samples(self, limit=None):
        return [Sample("copies", 0, "abc"), Sample("copies", 1, "bcd")] if self._samples is None else self._samples

    def score(self, samples, texts):
        return [1.0 for _ in texts] if self._scores is None else self._scores


SAMPLE = Sample("copies", 0, "abc")
SAMPLES = [
    3, "abc", {}, {SAMPLE}, (SAMPLE for _ in "a"), iter([SAMPLE]), [None], ["abc"], [{"prompt": "abc"}], [SAMPLE, None],
    [replace(SAMPLE, task="others")], [SAMPLE, SAMPLE], [replace(SAMPLE, index=index) for index in range(3)],
]  # fmt: skip
SCORES = [
    3, "ab", {}, {1.0}, [], [1.0], [1.0] * 3, [1.0, None], [1.0, "1"], [1.0, float("nan")], [float("inf"), 0.0],
    [[1.0], [1.0]], iter([1.0, 1.0]), 1.0, [1j, 1.0], (1.0,),
]  # fmt: skip


def run(tmp_path, tasks, **options):
    recipe = lastword.Recipe(length=lastword.Fixed(4))
    return evaluate(lastword.load("toy"), "toy", tasks, recipe, Journal(tmp_path / "r.jsonl"), limit=2, **options)


@pytest.mark.parametrize("samples", SAMPLES, ids=range(len(SAMPLES)))
def test_samples_are_checked(samples, tmp_path):
    with pytest.raises(TaskError, match=r"copies.samples .*must return"):
        run(tmp_path, [Copies(samples)])


@pytest.mark.parametrize("scores", SCORES, ids=range(len(SCORES)))
def test_scores_are_checked(scores, tmp_path):
    with pytest.raises(TaskError, match=r"copies.score returned .*; it must return a list of 2 finite numbers"):
        run(tmp_path, [Copies(scores=scores)])


@pytest.mark.parametrize("task", [None, 3, "algebra", Copies, object(), {"name": "x"}, lastword.Fixed(4)], ids=range(7))
def test_an_object_that_is_not_a_task_is_refused(task, tmp_path):
    with pytest.raises(TaskError, match=r"evaluate was given the task .*; give objects with name"):
        run(tmp_path, [task])


def test_a_task_that_keeps_the_contract_is_scored(tmp_path):
    assert [record.score for record in run(tmp_path, [Copies(scores=[True, 0])])] == [1, 0]


def test_bos_has_no_effect_in_a_chat_and_is_refused(tmp_path):
    with pytest.raises(SettingError, match="bos=True was given with a chat template"):
        evaluate(
            lastword.load("tiny-llada-instruct"),
            "x",
            embedded_tasks(["algebra"]),
            lastword.Recipe(),
            Journal(tmp_path / "r.jsonl"),
            limit=1,
            bos=True,
        )


@pytest.mark.parametrize(("name", "value"), [("chat", "yes"), ("chat", 1), ("bos", "no"), ("bos", None), ("bos", 1)])
def test_flags_are_true_or_false(name, value, tmp_path):
    with pytest.raises(SettingError, match=rf"evaluate\({name}="):
        run(tmp_path, [Copies()], **{name: value})
