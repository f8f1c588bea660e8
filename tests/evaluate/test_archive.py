"""An archive gives back what tables need, in few bytes, and the same bytes every time."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from lastword.errors import SettingError
from lastword.evaluate.archive import arms_in, file_name, keep, pack, unpack
from lastword.evaluate.journal import Journal, read_records
from lastword.evaluate.records import FINISHES, Spent, to_line
from lastword.paper.pairing import answers
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import answer, drift

FIXED, PREDICTED = Recipe(length=Fixed(64)), Recipe(length=Survival(64))


def record(index, **more):
    return answer(
        **{
            "index": index, "prompt": f"{index:016x}", "recipe": FIXED, "text": f"answer {index}",
            "cost": Spent(20 + index, 2000 + index, 9), "probe_cost": Spent(1, 80 + index % 7, 9),
            "finish": FINISHES[index % 4], "length": index % 5, "seconds": 0.1 * index, "rows": 4,
            "score": (index % 5) / 4, "batch_seconds": 0.5 + index // 4, "prompt_tokens": 10 + index % 7,
            "shortened": index % 3 == 0,
        } | more
    )  # fmt: skip


def kept(one):
    """What an archive keeps."""
    bare = {name: replace(getattr(one, name), attention_pairs=None) for name in ("cost", "probe_cost")}
    return replace(one, text=None, prompt=None, seconds=None, **bare)


def test_records_come_back_without_texts():
    records = [record(i, task=task) for task in ("a", "b") for i in range(50)]
    assert unpack(pack(records)) == [kept(r) for r in records]


def test_lengths_are_kept_of_the_fixed_canvas():
    records = [record(i, recipe=PREDICTED) for i in range(5)]
    assert {r.length for r in unpack(pack(records))} == {None}


def test_what_a_task_has_to_itself_and_gaps_come_back():
    code = [record(i, task="code", sandbox={"level": "plain"}, group="g") for i in (0, 3, 9)]
    plain = [record(i, task="algebra") for i in (2, 1)]
    assert unpack(pack([*code, *plain])) == [kept(r) for r in (*plain[::-1], *code)]


def test_drift_comes_back():
    records = [drift(index=i, expected={"0": 1.5, "2": i + 0.1234}) for i in range(3)]
    assert unpack(pack(records)) == records


def test_the_same_records_make_the_same_bytes_in_any_order():
    records = [record(i, batch_seconds=None) for i in range(20)]
    mixed = random.Random(1).sample(records, len(records))
    assert pack(mixed) == pack(records)
    assert pack([record(0)]) != pack([record(0, score=0.5)])


def test_an_archive_is_small():
    records = [record(i, batch_seconds=1.0) for i in range(500)]
    assert len(pack(records)) < sum(len(to_line(r)) for r in records) / 50


def test_a_file_that_says_the_same_is_left_alone(tmp_path):
    path = keep([record(i) for i in range(7)], tmp_path)
    before = path.stat().st_mtime_ns
    other = keep([record(i, recipe=PREDICTED) for i in range(7)], tmp_path)
    assert keep([record(i) for i in range(7)], tmp_path) == path != other
    assert path.stat().st_mtime_ns == before
    assert keep([record(i) for i in range(8)], tmp_path) == path
    assert len(read_records(path)) == 8


def test_an_arm_is_found_by_its_recipe_whatever_its_file_is_called(tmp_path):
    path = keep([record(0)], tmp_path).rename(tmp_path / "another name.arm.xz")
    assert keep([record(0), record(1)], tmp_path) == path
    assert arms_in(tmp_path) == {("answer", FIXED): path}


def test_a_name_that_is_taken_by_another_recipe_is_left_to_it(tmp_path):
    path = keep([record(0, recipe=PREDICTED)], tmp_path)
    path = path.rename(tmp_path / file_name("answer", FIXED))
    other = keep([record(0)], tmp_path)
    assert other != path
    assert arms_in(tmp_path) == {("answer", FIXED): other, ("answer", PREDICTED): path}


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "bad.arm.xz").write_bytes(b"bad")
    with pytest.raises(SettingError, match=r"bad\.arm\.xz is no archive"):
        arms_in(tmp_path)


def test_records_of_two_arms_are_no_archive():
    for other in ({"recipe": PREDICTED}, {"split": "validation"}, {"hardware": "another"}):
        with pytest.raises(SettingError, match=f"differ in '{next(iter(other))}'"):
            pack([record(0), record(1, **other)])


def test_an_arm_has_a_name_of_its_own():
    block = replace(FIXED, block=32)
    names = {file_name(kind, r) for kind in ("answer", "drift") for r in (FIXED, PREDICTED, block)}
    assert len(names) == 6
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_=.") for name in names)


def test_the_records_of_the_repository_are_records():
    folder = Path(__file__).parent.parent.parent / "benchmarks" / "records" / "speed"
    assert len(read_records(folder)) == 4 * 6 * 15


def test_a_validation_prompt_does_not_stand_in_for_a_test_prompt(tmp_path):
    """An archive has no prompts, so the index alone would take one for the other."""
    for split in ("validation", "test"):
        keep([record(i, split=split) for i in range(3)], tmp_path / split)
    read = read_records(tmp_path)
    for split in ("validation", "test"):
        assert len(answers(read, split)) == 3


@pytest.mark.parametrize(
    "other",
    [{"model": "n"}, {"weights": "v"}, {"dtype": "bfloat16"}, {"seed": 1}, {"split": "validation"},
     {"layout": "chat"}],
)  # fmt: skip
def test_an_archive_of_another_question_is_not_replaced(tmp_path, other):
    path = keep([record(0)], tmp_path)
    before = path.read_bytes()
    with pytest.raises(SettingError, match=f"another {next(iter(other))}.* left as it is"):
        keep([record(0, **other)], tmp_path)
    assert path.read_bytes() == before


def test_another_version_of_a_task_is_another_question(tmp_path):
    keep([record(0)], tmp_path)
    with pytest.raises(SettingError, match="holds 1 samples that are not among the 1 records given and"):
        keep([record(0, task_version="version 2")], tmp_path)


def test_an_archive_is_not_replaced_by_fewer_samples(tmp_path):
    path = keep([record(i) for i in range(7)], tmp_path)
    with pytest.raises(SettingError, match="holds 3 samples that are not among the 4"):
        keep([record(i) for i in range(4)], tmp_path)
    assert len(read_records(path)) == 7


def test_other_hardware_answers_the_same_question(tmp_path):
    keep([record(0)], tmp_path)
    path = keep([record(0, hardware="faster", versions={"lastword": "2"})], tmp_path)
    assert [one.hardware for one in read_records(path)] == ["faster"]


def test_a_full_disk_leaves_the_archive_as_it_was(tmp_path, monkeypatch):
    path = keep([record(0)], tmp_path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SettingError, match=r"No space left on device.*as it was"):
        keep([record(0), record(1)], tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_records_and_a_record_twice_are_no_archive():
    with pytest.raises(SettingError, match="none were given"):
        pack([])
    with pytest.raises(SettingError, match="sample 1 of t was given twice"):
        pack([record(1), record(1)])


def test_an_archive_beside_its_journal_counts_once(tmp_path):
    records = [record(i) for i in range(5)]
    Journal(tmp_path / "a.jsonl").append(records)
    keep(records, tmp_path)
    assert len(read_records(tmp_path)) == 10
    assert len(answers(read_records(tmp_path))) == 5
