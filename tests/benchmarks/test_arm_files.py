"""Tests of the compact files of arms: their contents, their size, and that no sample is lost."""

import random
from dataclasses import replace
from typing import get_args

import pytest

from benchmarks.arm_files import file_of, keep, read_arms
from lastword.errors import SettingError
from lastword.evaluate.records import FinishName, RecordedCost, to_line
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import answer, drift

FIXED, PREDICTED = Recipe(length=Fixed(64)), Recipe(length=Survival(64))


def record(index=0, **fields):
    return answer(
        **{
            "index": index, "prompt": f"{index:016x}", "recipe": FIXED, "text": f"answer {index}",
            "cost": RecordedCost(20 + index, 2000 + index, 9), "probe_cost": RecordedCost(1, 80 + index % 7,
            9), "finish": get_args(FinishName)[index % 4], "length": index % 5, "seconds": 0.1 * index, "rows": 4,
            "score": (index % 5) / 4, "seconds_share": 0.5 + index // 4, "prompt_tokens": 10 + index % 7,
            "shortened": index % 3 == 0,
        } | fields
    )  # fmt: skip


def compact(record):
    """Return the part of an answer that a file contains."""
    costs = {name: replace(getattr(record, name), attention_pairs=None) for name in ("cost", "probe_cost")}
    return replace(record, text=None, prompt=None, seconds=None, **costs)


def arms(folder):
    return {recipe: records for (_, _, recipe), records in read_arms(folder, "m").items()}


def test_records_are_read_in_order_and_without_texts(tmp_path):
    """Records of earlier versions have the time of their batch. A record may have no time."""
    code = [record(i, task="code", sandbox={"level": "plain"}, group="g") for i in (0, 3, 9)]
    plain = [record(i, task="algebra", seconds_share=None) for i in range(50)]
    old = [record(i, task="bbh", seconds_share=None, batch_seconds=0.5 + i // 4) for i in range(8)]
    keep(random.Random(1).sample([*code, *plain, *old], 61), tmp_path)
    assert arms(tmp_path) == {FIXED: [compact(r) for r in (*plain, *old, *code)]}


def test_lengths_are_kept_for_fixed_canvases_only(tmp_path):
    keep([record(i, recipe=PREDICTED) for i in range(5)], tmp_path)
    assert {r.length for r in arms(tmp_path)[PREDICTED]} == {None}


def test_kinds_and_splits_are_separate_arms(tmp_path):
    drifts = [drift(index=i, expected={"0": 1.5, "2": i + 0.1234}) for i in range(3)]
    validation = [record(i, split="validation") for i in range(3)]
    written = keep([*drifts, *validation, *(record(i) for i in range(4))], tmp_path)
    arms = read_arms(tmp_path, "m")
    assert set(written) == set(arms)
    assert arms["drift", "test", drifts[0].recipe] == drifts
    assert {key[:2]: len(arm) for key, arm in arms.items()} == {
        ("drift", "test"): 3, ("answer", "validation"): 3, ("answer", "test"): 4,
    }  # fmt: skip


def test_a_file_is_small(tmp_path):
    records = [record(i, seconds_share=1.0) for i in range(500)]
    keep(records, tmp_path)
    assert file_of(tmp_path, "m").stat().st_size < sum(len(to_line(r)) for r in records) / 25


def test_an_arm_is_replaced_by_one_with_at_least_as_many_samples(tmp_path):
    keep([record(i) for i in range(7)], tmp_path)
    path = file_of(tmp_path, "m")
    before = path.stat().st_mtime_ns
    assert keep([record(i) for i in range(7)], tmp_path) == []  # the same
    assert keep([record(i) for i in range(4)], tmp_path) == []  # fewer
    assert path.stat().st_mtime_ns == before
    assert len(keep([record(i, recipe=PREDICTED) for i in range(7)], tmp_path)) == 1
    assert len(keep([record(i, hardware="faster") for i in range(8)], tmp_path)) == 1
    kept = arms(tmp_path)
    assert [len(kept[recipe]) for recipe in (FIXED, PREDICTED)] == [8, 7]
    assert {r.hardware for r in kept[FIXED]} == {"faster"}


@pytest.mark.parametrize(
    "other",
    [{"weights": "v"}, {"dtype": "bfloat16"}, {"seed": 1}, {"layout": "chat"}, {"task_version": "version 2"},
     {"task": "u"}, {"index": 1}],
)  # fmt: skip
def test_an_arm_without_the_kept_samples_is_rejected(tmp_path, other):
    keep([record(0)], tmp_path)
    path = file_of(tmp_path, "m")
    before = path.read_bytes()
    with pytest.raises(SettingError, match=r"was not changed.* lacks 1 of the kept samples"):
        keep([record(**other)], tmp_path)
    assert path.read_bytes() == before


def test_duplicate_samples_and_unknown_costs_are_rejected(tmp_path):
    with pytest.raises(SettingError, match="has a sample twice"):
        keep([record(1), record(1)], tmp_path)
    with pytest.raises(SettingError, match="t 1 was answered by a server"):
        keep([record(1, cost=None)], tmp_path)
    assert list(tmp_path.iterdir()) == []
