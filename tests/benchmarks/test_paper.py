"""Tests of the paper's tables and figures on hand-made records, so that every number can be checked."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paper.__main__ import run
from benchmarks.paper.figures import Panel, _points, save_figures
from benchmarks.paper.page import page_tables
from benchmarks.paper.tables import arms_of, benchmark_of, paper_tables, task_title
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal
from lastword.evaluate.presets import PRESETS
from lastword.evaluate.records import RecordedCost
from lastword.evaluate.tables import plan_fit
from lastword.policies.unmask.rule import MostConfident
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from tests.evaluate.made import answer, drift

ROOT = Path(__file__).parent.parent.parent
THRESHOLD = {"unmask": "threshold:0.9", "block": 32}


def recipe(**choices):
    return Recipe().with_choices(**choices)


def records(recipe, scores, *, horizon=256, tokens=100, **fields):
    """Return a record per score; `horizon` may be a list."""
    horizons = horizon if isinstance(horizon, list) else [horizon] * len(scores)
    usual = {"model": "tiny-llada-base", "task": "word_problems", "seconds_share": 4.0, "length": 49}
    return [
        answer(
            **usual | fields | {
                "recipe": recipe, "index": index, "score": float(score), "horizon": slots,
                "cost": RecordedCost(slots, tokens, 0),
            }
        )
        for index, (score, slots) in enumerate(zip(scores, horizons))
    ]  # fmt: skip


FIXED = records(recipe(length="fixed:256"), [1, 1, 1, 0])
SURVIVAL = records(recipe(length="survival:256"), [1, 1, 0, 0], horizon=[40, 50, 60, 71], tokens=25, seconds_share=1.0)
MEAN = records(recipe(length="fixed:56"), [0, 0, 0, 0], horizon=56, tokens=20)
DAEDAL = records(recipe(length="daedal", **THRESHOLD), [1, 1, 1, 1], horizon=64, tokens=10, seconds_share=2.0)
STOP = records(recipe(length="stop-at-end:fixed:256", block=32), [1, 1, 1, 1], tokens=50)
DRIFT = [
    drift(
        model=r.model, task=r.task, recipe=r.recipe, index=r.index,
        expected={"0": 50.0, "2": 52.0 + r.index, "5": 49.0},
    )
    for r in SURVIVAL
]  # fmt: skip
ALL = [*FIXED, *SURVIVAL, *MEAN, *DAEDAL, *STOP, *DRIFT]


def tables(records=ALL):
    return {table.name: table for table in paper_tables(records)}


def test_every_recipe_has_its_role():
    (arms,) = arms_of(ALL)
    assert (arms.subject, arms.benchmark) == ("tiny-llada-base", "GSM8K")
    assert arms.fixed.records == FIXED
    assert arms.survival.records == SURVIVAL
    assert arms.daedal.records == DAEDAL
    assert arms.stop.records == STOP
    assert arms.drift == DRIFT
    assert sorted(arms.canvases) == [56, 256]
    assert arms.fixed_at_mean.records == MEAN


def test_other_rules_interpretations_canvases_and_splits_have_no_role():
    others = [
        *records(recipe(length="fixed:256", unmask="most-confident:2"), [0, 0]),
        *records(recipe(length="survival:64"), [0, 0]),
        *records(recipe(length="survival:256,ends=any"), [0, 0]),
        *records(recipe(length="survival:256,interpretation=auto"), [0, 0]),
        *records(recipe(length="survival:256,estimate=quantile:0.9"), [0, 0]),
        *records(recipe(length="survival:256", **THRESHOLD), [0, 0]),
        *records(recipe(length="survival:256", cache="dual", block=32), [0, 0]),
        *records(recipe(length="stop-at-end:fixed:64", block=32), [0, 0]),
        *records(recipe(length="fixed:512"), [0] * 4, split="validation"),
        *records(recipe(length="fixed:512"), [0]),  # a trial: one sample
    ]
    (arms,) = arms_of([*others, *ALL])
    assert (arms.fixed.records, arms.survival.records) == (FIXED, SURVIVAL)
    assert arms.stop.records == STOP


@pytest.mark.parametrize("name", PRESETS)
def test_every_benchmark_of_a_preset_has_a_row(name):
    """The recipe of a preset may differ from benchmark to benchmark."""
    of_preset = []
    for setting in PRESETS[name].settings:
        base = setting.recipe.with_choices(length="fixed:1024")
        for arm in (base, setting.recipe, base.with_choices(length="daedal", block=32)):
            for task in setting.tasks:
                of_preset += records(arm, [1, 0], task=task, model=name)
    tasks = [task for setting in PRESETS[name].settings for task in setting.tasks]
    for table in ("Table 1", "Table 2", "Table 4", "Table 5"):
        assert len(tables(of_preset)[table].rows) == len(tasks)


def test_records_of_different_seeds_are_separate_models():
    other = [replace(r, seed=1, score=0.0) for r in [*FIXED, *SURVIVAL]]
    rows = tables([*ALL, *other])["Table 2"].rows
    assert [row[:4] for row in rows] == [
        ["tiny-llada-base (seed 0)", "word_problems (for GSM8K)", "4", "75.0 ± 25.0"],
        ["tiny-llada-base (seed 1)", "word_problems (for GSM8K)", "4", "0.0 ± 0.0"],
    ]


def test_duplicate_records_count_once():
    assert paper_tables([*ALL, *ALL]) == paper_tables(ALL)


def test_another_version_of_a_task_is_another_sample():
    newer = [replace(r, task_version="2", score=0.0) for r in FIXED]
    (row,) = tables([*FIXED, *newer, *SURVIVAL])["Table 2"].rows
    assert row[2:4] == ["4", "75.0 ± 25.0"]


def test_seconds_of_different_machines_batch_sizes_and_dtypes_are_not_compared():
    for change in ({"hardware": "another"}, {"rows": 8}, {"dtype": "bfloat16"}):
        assert "Table 1" not in tables([*FIXED, *(replace(r, **change) for r in SURVIVAL)])
    timed = [replace(r, rows=8) for r in [*FIXED[:2], *SURVIVAL[:2]]]
    (row,) = paper_tables(ALL, timed)[0].rows
    assert row[2] == "2"


def test_samples_without_comparable_seconds_are_left_out_and_counted():
    """The first sample is not timed in all arms, and the second was timed in larger batches."""
    arms = [[arm[0], replace(arm[1], rows=8), *arm[2:]] for arm in (FIXED, SURVIVAL, DAEDAL)]
    arms[1][0] = replace(arms[1][0], seconds_share=None)
    by_name = tables([record for arm in arms for record in arm])
    for name in ("Table 1", "Table 4"):
        assert by_name[name].rows[0][2] == "2"
        assert (
            "2 samples are left out: 1 were not timed in all arms and 1 were timed on another machine or with another "
            "batch size or dtype."
        ) in by_name[name].caption
    assert all("left out" not in table.caption for table in tables().values())


def test_the_seconds_of_a_batch_are_divided_by_its_rows():
    """Records of earlier versions contain the seconds of the whole batch."""
    old = [replace(r, rows=4, batch_seconds=4 * r.seconds_share, seconds_share=None) for r in [*FIXED, *SURVIVAL]]
    (row,) = tables(old)["Table 1"].rows
    assert row[3:5] == ["4", "1 (4.0x)"]
    assert tables(old)["Table 1"].caption.endswith("Measured on a machine, float32, batches of 4.")


def test_speed_is_a_ratio_on_the_same_samples_and_names_the_machine():
    table = tables()["Table 1"]
    assert table.rows == [[
        "tiny-llada-base", "word_problems (for GSM8K)", "4", "4", "1 (4.0x)", "0.22", "0.25",
        "91, 16 (5.2x)",
    ]]  # fmt: skip
    assert table.caption.endswith("Measured on a machine, float32, one prompt at a time.")
    on_another = [replace(r, model="another", hardware="another machine") for r in ALL]
    both = tables([*ALL, *on_another])["Table 1"]
    assert [row[7].split(",")[0] for row in both.rows] == ["a machine", "another machine"]
    assert "Measured" not in both.caption
    untimed = [replace(r, seconds_share=None) for r in ALL if r.kind == "answer"]
    assert "Table 1" not in tables(untimed)
    assert "Table 2" in tables(untimed)


def test_accuracy_has_a_standard_error_and_a_paired_test():
    (row,) = tables()["Table 2"].rows
    assert row[2:7] == ["4", "75.0 ± 25.0", "50.0 ± 28.9", "-25.0 ± 25.0", "1"]
    assert row[7] == "69.9 ± 1.3, 70.0 ± 1.3"


def test_a_fixed_mean_is_compared_with_the_prediction():
    (row,) = tables()["Table 3"].rows
    assert row[2:7] == ["4", "55 ± 12", "56", "-50.0 ± 28.9", "0.5"]
    assert "Table 3" not in tables(FIXED)


def test_a_fixed_mean_that_was_not_run_is_named():
    (row,) = tables([*FIXED, *SURVIVAL])["Table 3"].rows
    assert row[2:7] == ["4", "55 ± 12", "56", "not run", ""]


def test_table_4_names_the_unmask_rule_of_daedal():
    assert "DAEDAL unmasks by its own rule, several tokens per forward pass" in tables()["Table 4"].caption
    other = [replace(r, recipe=replace(r.recipe, unmask=MostConfident())) for r in DAEDAL]
    caption = tables([*FIXED, *SURVIVAL, *other])["Table 4"].caption
    assert "DAEDAL unmasks by most-confident; its own rule is a threshold" in caption


def test_daedal_is_compared_with_the_prediction_of_the_paper():
    assert tables()["Table 4"].rows[0][2:6] == ["4", "4", "2 (2.0x)", "1 (4.0x)"]
    assert tables()["Table 5"].rows[0][4:8] == ["100.0 ± 0.0, p = 1", "0.100", "50.0 ± 28.9, p = 1", "0.250"]


def test_three_arms_are_compared_on_their_shared_samples():
    fewer = [*FIXED, *SURVIVAL[:3], *DAEDAL[1:]]
    (row,) = tables(fewer)["Table 5"].rows
    assert row[2:4] == ["2", "100.0 ± 0.0"]
    assert tables(fewer)["Table 4"].rows[0][2] == "2"


def test_drift_is_the_change_since_the_first_step():
    table = tables()["Table 6"]
    assert table.columns[2:] == ["n", "step 2", "step 5", "paper: steps 2, 5, 7, 10"]
    assert table.rows[0][2:5] == ["4", "+3.5 ± 1.1", "-1.0 ± 0.0"]


def test_coverage_is_the_share_of_baseline_answers_that_fit():
    (arms,) = arms_of(ALL)
    assert plan_fit(arms.fixed.records, arms.survival.records) == (0.75, (0 + 0 + 10 + 21) / 4)
    rows = {row[1]: row for row in tables()["Table 7"].rows}
    assert list(rows) == ["fixed 56", "fixed 256, the best", "stop at end", "survival", "DAEDAL"]
    assert rows["survival"][6:8] == ["75.0%", "8"]


def test_harness_tasks_of_one_benchmark_are_merged():
    fixed = [*records(recipe(length="fixed:256"), [1, 0], task="bbh_cot_fewshot_navigate"),
             *records(recipe(length="fixed:256"), [1, 1], task="bbh_cot_fewshot_snarks")]  # fmt: skip
    survival = [replace(r, recipe=recipe(length="survival:256")) for r in fixed]
    (row,) = tables([*fixed, *survival])["Table 2"].rows
    assert (row[1], row[2], row[3]) == ("BBH", "4", "75.0 ± 25.0")
    assert benchmark_of(fixed[0]) == "BBH"
    assert task_title("BBH", fixed) == "BBH"


def test_benchmarks_measured_on_two_machines_are_both_shown():
    algebra = [replace(r, hardware="another", task="algebra") for r in [*FIXED[:2], *SURVIVAL[:2]]]
    assert [row[1] for row in tables([*ALL, *algebra])["Table 2"].rows] == [
        "word_problems (for GSM8K)", "algebra (for MATH)",
    ]  # fmt: skip


def command(*arguments):
    options = map(str, (sys.executable, "-m", "benchmarks.paper", *arguments))
    return subprocess.run(options, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.full
def test_the_command_writes_the_same_bytes_every_time(tmp_path):
    Journal(tmp_path / "m.jsonl").append(ALL)
    outs = []
    for name in ("one", "two"):
        process = command("--records", tmp_path / "m.jsonl", "--out", tmp_path / name)
        assert process.returncode == 0, process.stderr
        outs.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert outs[0] == outs[1]
    assert {"tables.md", "table-1.csv", "table-7.csv", "pareto.png", "pareto.svg"} <= set(outs[0])
    assert list(csv.reader((tmp_path / "one" / "table-2.csv").open()))[1][3] == "75.0 ± 25.0"
    assert process.stdout.startswith("**Table 1.**")


def test_a_table_without_a_baseline_has_no_figures(tmp_path):
    Journal(tmp_path / "m.jsonl").append(DRIFT)
    out = tmp_path / "out"
    run([tmp_path / "m.jsonl"], None, out, figures=True)
    assert {path.name for path in out.iterdir()} == {"tables.md", "table-6.csv"}


def test_records_with_nothing_to_compare_are_rejected(tmp_path):
    Journal(tmp_path / "m.jsonl").append(DAEDAL)
    with pytest.raises(SettingError, match="nothing to compare"):
        run([tmp_path], None, None, figures=False)
    with pytest.raises(SettingError, match="fixed canvas"):
        save_figures(DAEDAL, tmp_path)


def test_a_point_of_the_figure_compares_shared_samples():
    auto = records(recipe(length="survival:256,interpretation=auto"), [1, 1], tokens=30)
    panel = Panel.of("m", [*FIXED, *auto])
    assert _points(panel)[auto[0].recipe] == (0.3, 0.0)


def test_points_of_accuracy_and_work_have_names_as_labels(tmp_path):
    ours = records(Recipe(length=default_length(256), block=32), [1] * 4, tokens=20)
    without_label = records(recipe(length="survival:256,interpretation=auto"), [1] * 4, tokens=30)
    save_figures([*ALL, *ours, *without_label], tmp_path, ["svg"])
    text = (tmp_path / "pareto.svg").read_text()
    for name in ("fixed canvas", "the paper", "our default"):
        assert text.count(f"<!-- {name} -->") == 1
    assert "survival" not in text  # no command-line strings


def test_figures_of_many_tasks_and_of_truncated_answers_are_drawn(tmp_path):
    fixed = recipe(length="fixed:256")
    truncated = [r for n in range(12) for r in records(fixed, [1], task=f"task {n}", finish="truncated")]
    assert len(save_figures(truncated, tmp_path)) == 6


def test_table_7_contains_our_default_for_the_canvas_of_the_baseline():
    """The default has a block or leaves it to the model."""
    for block in (None, 32):
        default = Recipe(length=default_length(256), block=block)
        rows = {row[1]: row for row in tables([*ALL, *records(default, [1] * 4)])["Table 7"].rows}
        assert rows["our default"][3] == "100.0 ± 0.0"
    other = Recipe(length=default_length(128))
    assert "our default" not in {row[1] for row in tables([*ALL, *records(other, [1] * 4)])["Table 7"].rows}


def test_a_single_fixed_canvas_is_not_called_the_best():
    assert [row[1] for row in tables([*FIXED, *SURVIVAL])["Table 7"].rows] == ["fixed 256", "survival"]


def test_a_baseline_without_costs_is_accepted(tmp_path):
    """No prompt fits into the baseline, so its cost is 0, and shares of it are unknown."""
    too_long = {"finish": "too_long", "cost": RecordedCost(0, 0), "horizon": 0, "length": 0, "score": 0.0}
    fixed = [answer(index=at, recipe=recipe(length="fixed:64"), **too_long) for at in range(3)]
    short = [answer(index=at, recipe=recipe(length="fixed:8")) for at in range(3)]
    survival = [answer(index=at, recipe=recipe(length="survival:64")) for at in range(3)]
    for table in paper_tables([*fixed, *short, *survival]):
        assert table.markdown()
    assert save_figures([*fixed, *short, *survival], tmp_path)


# The shortened tables of docs/measured/paper-tables.md


def test_page_tables_of_base_models_have_a_row_per_task_and_of_instruct_models_one_row():
    algebra = [replace(r, task="algebra") for r in ALL]
    instruct = [replace(r, model="tiny-llada-instruct") for r in [*ALL, *algebra]]
    every = [*ALL, *algebra, *instruct]
    on_page = {table.name: table for table in page_tables(every, every)}
    assert list(on_page) == [f"Table {n}" for n in range(1, 8)]
    for name in ("Table 1", "Table 2", "Table 3"):
        assert [row[:2] for row in on_page[name].rows] == [
            ["tiny-llada-base", "word_problems (for GSM8K)"], ["tiny-llada-base", "algebra (for MATH)"],
            ["tiny-llada-instruct", "all tasks"],
        ]  # fmt: skip
    for name in ("Table 4", "Table 5"):
        assert [row[0] for row in on_page[name].rows] == ["tiny-llada-base", "tiny-llada-instruct"]
        assert "task" not in on_page[name].columns


def test_page_tables_have_the_cells_of_the_complete_tables():
    """With one task per model, both have the same rows, except for the columns that the page leaves out."""
    on_page, complete = {table.name: table for table in page_tables(ALL, ALL)}, tables()
    about_daedal = {"task", "n", "paper: w/o, DAEDAL, survival"}
    left_out = {
        "Table 1": {"n"}, "Table 2": {"n"}, "Table 3": {"n"}, "Table 4": about_daedal, "Table 5": about_daedal,
    }  # fmt: skip
    for name, columns in left_out.items():
        at = [index for index, column in enumerate(complete[name].columns) if column not in columns]
        assert on_page[name].columns == [complete[name].columns[index] for index in at]
        assert on_page[name].rows == [[row[index] for index in at] for row in complete[name].rows]
        assert on_page[name].caption == complete[name].caption


def test_merged_tasks_have_the_records_of_all_tasks():
    """The two tasks of the instruct model have different scores, predictions and drifts."""
    algebra = [
        *(replace(r, task="algebra", score=0.0) for r in [*FIXED, *SURVIVAL]),
        *(replace(r, task="algebra", expected={"0": 50.0, "2": 60.0}) for r in DRIFT),
    ]
    every = [replace(r, model="tiny-llada-instruct") for r in [*FIXED, *SURVIVAL, *DAEDAL, *DRIFT, *algebra]]
    on_page = {table.name: table for table in page_tables(every, every)}
    (row,) = on_page["Table 2"].rows
    assert row[:4] == ["tiny-llada-instruct", "all tasks", "37.5 ± 18.3", "25.0 ± 16.4"]
    assert on_page["Table 4"].rows == []  # DAEDAL answered one of the tasks only
    (row,) = on_page["Table 6"].rows
    assert row[:3] == ["tiny-llada-instruct", "all tasks", "+6.8 ± 3.3"]


def test_tables_6_and_7_of_the_page_are_shortened():
    steps = {"0": 50.0, "2": 52.0, "5": 49.0, "7": 48.0, "10": 53.0}
    drifts = [replace(r, expected=steps) for r in DRIFT]
    default = records(Recipe(length=default_length(256), block=32), [1] * 4)
    every = [*FIXED, *SURVIVAL, *MEAN, *STOP, *default, *drifts]
    *_, sixth, seventh = page_tables(every, every)
    assert sixth.columns == ["model", "task", "step 2", "step 10", "paper: steps 2, 10"]
    (published,) = [row[-1].split(", ") for row in tables(every)["Table 6"].rows]
    assert sixth.rows == [[
        "tiny-llada-base", "word_problems (for GSM8K)", "+2.0 ± 0.0", "+3.0 ± 0.0",
        f"{published[0]}, {published[3]}",
    ]]  # fmt: skip
    assert seventh.columns == ["model", "canvas", "covered", "unused", "tokens computed"]
    assert [row[1] for row in seventh.rows] == ["fixed 256, the best", "survival", "our default"]
    assert ["tiny-llada-base", "survival", "75.0%", "8", "0.250"] in seventh.rows
