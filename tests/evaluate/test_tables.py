"""Tests of `lastword tables` on hand-made records, so that every number can be checked."""

import csv
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.evaluate import Journal, read_records
from lastword.evaluate.records import RecordedCost
from lastword.evaluate.tables import tables
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import answer, drift


def arm(length, scores, horizon, *, tokens, **fields):
    return [
        answer(
            recipe=Recipe(length=length), index=index, score=score, horizon=horizon, length=49,
            cost=RecordedCost(horizon, tokens), **fields,
        )
        for index, score in enumerate(scores)
    ]  # fmt: skip


PREDICTED = arm(Survival(64), [1.0, 1.0, 0.0, 0.0], 40, tokens=25, seconds_share=1.0)
SHORT = arm(Fixed(32), [0.0] * 4, 32, tokens=20, seconds_share=1.0)
FIXED = arm(Fixed(64), [1.0, 1.0, 1.0, 0.0], 64, tokens=100, seconds_share=4.0)
DRIFT = [drift(index=index, expected={"0": 50.0, "2": 52.0 + index}) for index in range(4)]
ALL = [*PREDICTED, *SHORT, *FIXED, *DRIFT]


def test_recipes_are_compared_with_the_longest_fixed_canvas():
    made, drifts = tables(ALL, against_fixed=True)
    assert made.title == "tiny (version 1; plain)"
    assert [row[1] for row in made.rows] == ["fixed, 64 slots", "paper, 64 slots", "fixed, 32 slots"]
    fixed, predicted, _ = made.rows
    assert fixed[2:] == ["4", "64", "0.750 ± 0.250", "", "0.00", "1.00", "1.00", "1.00", "100.0%", "14"]
    assert predicted[2:] == [
        "4", "40", "0.500 ± 0.289", "-0.250, p = 1", "0.00", "0.62", "0.25", "0.25", "0.0%", "0"
    ]  # fmt: skip
    assert drifts.rows == [["m", "t", "4", "+3.5 ± 1.1"]]


def test_without_a_baseline_recipes_are_compared_with_the_first_one_and_have_no_fit():
    (made,) = tables([*PREDICTED, *FIXED])
    assert [row[1] for row in made.rows] == ["paper, 64 slots", "fixed, 64 slots"]
    assert made.columns[-1] == "seconds"
    unknown = [replace(record, length=None) for record in FIXED]
    (made,) = tables([*unknown, *PREDICTED], against_fixed=True)
    assert {tuple(row[-2:]) for row in made.rows} == {("", "")}


def test_splits_versions_and_layouts_have_separate_tables():
    others = [replace(r, **{name: "other"}) for name in ("split", "task_version", "layout") for r in FIXED]
    titles = [table.title for table in tables([*FIXED, *others])]
    assert titles == [
        "tiny (other; version 1; plain)", "tiny (other; plain)", "tiny (version 1; other)",
        "tiny (version 1; plain)",
    ]  # fmt: skip


def test_samples_that_one_recipe_lacks_are_left_out_and_counted():
    (complete,) = tables([*FIXED, *PREDICTED])
    assert complete.note == ""
    (made,) = tables([*FIXED, *PREDICTED[:3]])
    assert made.rows[1][2] == "3"
    assert made.note == (
        "m, paper, 64 slots: difference and costs are computed on 3 samples; 1 others were answered by one of the "
        "two recipes only."
    )
    assert made.markdown().endswith(f"|\n\n{made.note}")


def test_records_without_seconds_are_counted():
    untimed = [replace(record, seconds_share=None) for record in PREDICTED[:1]]
    (made,) = tables([*FIXED, *untimed, *PREDICTED[1:]])
    assert made.note == "m, paper, 64 slots: 1 records have no seconds, because they were not measured."
    (made,) = tables([replace(record, seconds_share=None) for record in [*FIXED, *PREDICTED]])
    assert [row[9] for row in made.rows] == ["", ""]
    assert made.note == ""


def test_seconds_may_come_from_other_records():
    slow = [replace(record, seconds_share=8.0) for record in [*PREDICTED, *FIXED]]
    (made,) = tables([*PREDICTED, *FIXED], slow, against_fixed=True)
    assert [row[9] for row in made.rows] == ["1.00", "1.00"]


def run(*arguments):
    return CliRunner().invoke(app, ["tables", *map(str, arguments)])


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "records" / "m.jsonl"
    Journal(path).append(ALL)
    return path


def test_the_command_writes_the_same_bytes_every_time(tmp_path, journal):
    outs = []
    for name in ("one", "two"):
        exported = tmp_path / f"{name}.parquet"
        done = run("--records", journal, "--out", tmp_path / name, "--parquet", exported)
        assert done.exit_code == 0, done.output
        outs.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert outs[0] == outs[1]
    assert set(outs[0]) == {
        "tables.md", "tiny-version-1-plain.csv",
        "change-of-the-expected-length-in-slots-when-it-is-read-after-some-denoising-steps.csv",
    }  # fmt: skip
    rows = list(csv.reader((tmp_path / "one" / "tiny-version-1-plain.csv").open()))
    assert rows[1][4] == "0.750 ± 0.250"
    assert done.output.startswith("tiny (version 1; plain)")
    assert read_records(exported) == ALL


@pytest.mark.parametrize("name", ["tables.md", "tiny-version-1-plain.csv"])
def test_a_file_of_the_user_with_the_name_of_a_table_is_not_overwritten(tmp_path, journal, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("my own\n")
    done = run("--records", journal, "--out", out)
    assert done.exit_code == 1
    assert "was not written by lastword tables" in done.output
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [(name, "my own\n")]


def test_the_records_that_are_read_are_not_overwritten(tmp_path, journal):
    assert run("--records", journal, "--parquet", tmp_path / "a.parquet").exit_code == 0
    done = run("--records", tmp_path / "a.parquet", "--parquet", tmp_path / "a.parquet")
    assert (done.exit_code, "contains the records" in " ".join(done.output.split())) == (1, True)


def test_a_folder_without_records_is_rejected(tmp_path):
    done = run("--records", tmp_path)
    assert (done.exit_code, "no records; measure some" in " ".join(done.output.split())) == (1, True)
