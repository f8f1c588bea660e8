"""The paper's tables from records made by hand, so that every number can be checked."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paper.__main__ import run
from benchmarks.paper.figures import Panel, _points, save_figures
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


def records(made, scores, *, horizon=256, columns=100, **more):
    """A record a score; `horizon` may be a list."""
    horizons = horizon if isinstance(horizon, list) else [horizon] * len(scores)
    fields = {"model": "tiny-llada-base", "task": "word_problems", "batch_seconds": 4.0, "length": 49}
    return [
        answer(
            **fields | more | {
                "recipe": made, "index": index, "score": float(score), "horizon": slots,
                "cost": RecordedCost(slots, columns, 0),
            }
        )
        for index, (score, slots) in enumerate(zip(scores, horizons))
    ]  # fmt: skip


FIXED = records(recipe(length="fixed:256"), [1, 1, 1, 0])
SURVIVAL = records(recipe(length="survival:256"), [1, 1, 0, 0], horizon=[40, 50, 60, 71], columns=25, batch_seconds=1.0)
MEAN = records(recipe(length="fixed:56"), [0, 0, 0, 0], horizon=56, columns=20)
DAEDAL = records(recipe(length="daedal", **THRESHOLD), [1, 1, 1, 1], horizon=64, columns=10, batch_seconds=2.0)
STOP = records(recipe(length="stop-at-end:fixed:256", block=32), [1, 1, 1, 1], columns=50)
DRIFT = [
    drift(
        model=r.model, task=r.task, recipe=r.recipe, index=r.index,
        expected={"0": 50.0, "2": 52.0 + r.index, "5": 49.0},
    )
    for r in SURVIVAL
]  # fmt: skip
ALL = [*FIXED, *SURVIVAL, *MEAN, *DAEDAL, *STOP, *DRIFT]


def tables(given=ALL):
    return {table.name: table for table in paper_tables(given)}


def test_every_recipe_finds_its_part():
    (arms,) = arms_of(ALL)
    assert (arms.subject, arms.benchmark) == ("tiny-llada-base", "GSM8K")
    assert arms.fixed.records == FIXED
    assert arms.survival.records == SURVIVAL
    assert arms.daedal.records == DAEDAL
    assert arms.stop.records == STOP
    assert arms.drift == DRIFT
    assert sorted(arms.canvases) == [56, 256]
    assert arms.fixed_at_mean.records == MEAN


def test_other_rules_readings_canvases_and_splits_are_not_taken_for_the_papers():
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
def test_a_preset_asks_every_benchmark_with_its_own_recipe_and_none_is_lost(name):
    found = []
    for setting in PRESETS[name].settings:
        base = setting.recipe.with_choices(length="fixed:1024")
        for made in (base, setting.recipe, base.with_choices(length="daedal", block=32)):
            for task in setting.tasks:
                found += records(made, [1, 0], task=task, model=name)
    tasks = [task for setting in PRESETS[name].settings for task in setting.tasks]
    for table in ("Table 1", "Table 2", "Table 4", "Table 5"):
        assert len(tables(found)[table].rows) == len(tasks)


def test_seeds_weights_and_layouts_are_never_compared_with_one_another():
    other = [replace(r, seed=1, score=0.0) for r in [*FIXED, *SURVIVAL]]
    rows = tables([*ALL, *other])["Table 2"].rows
    assert [row[:4] for row in rows] == [
        ["tiny-llada-base (seed 0)", "word_problems (for GSM8K)", "4", "75.0 ± 25.0"],
        ["tiny-llada-base (seed 1)", "word_problems (for GSM8K)", "4", "0.0 ± 0.0"],
    ]


def test_a_record_that_is_there_twice_counts_once():
    assert [t.rows for t in paper_tables([*ALL, *ALL])] == [t.rows for t in paper_tables(ALL)]


def test_another_version_of_a_task_is_another_sample():
    newer = [replace(r, task_version="2", score=0.0) for r in FIXED]
    (row,) = tables([*FIXED, *newer, *SURVIVAL])["Table 2"].rows
    assert row[2:4] == ["4", "75.0 ± 25.0"]


def test_seconds_of_two_machines_or_batch_sizes_are_never_compared():
    for moved in ({"hardware": "another"}, {"rows": 8}, {"dtype": "bfloat16"}):
        assert "Table 1" not in tables([*FIXED, *(replace(r, **moved) for r in SURVIVAL)])
    elsewhere = [replace(r, rows=8) for r in [*FIXED[:2], *SURVIVAL[:2]]]
    assert paper_tables(ALL, elsewhere)[0].rows[0][2] == "2"


def test_speed_is_a_ratio_on_the_same_samples_with_the_machine_named():
    made = tables()["Table 1"]
    assert made.rows == [[
        "tiny-llada-base", "word_problems (for GSM8K)", "4", "4", "1 (4.0x)", "0.22", "0.25",
        "91, 16 (5.2x)",
    ]]  # fmt: skip
    assert made.caption.endswith("Measured on a machine, float32, 1 at once.")
    elsewhere = [replace(r, model="another", hardware="another machine") for r in ALL]
    both = tables([*ALL, *elsewhere])["Table 1"]
    assert [row[7].split(",")[0] for row in both.rows] == ["a machine", "another machine"]
    assert "Measured" not in both.caption
    untimed = [replace(r, batch_seconds=None) for r in ALL if r.kind == "answer"]
    assert "Table 1" not in tables(untimed)
    assert "Table 2" in tables(untimed)


def test_accuracy_has_its_error_and_a_paired_test():
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


def test_table_four_says_by_which_rule_daedal_filled():
    assert "several tokens a pass" in tables()["Table 4"].caption
    other = [replace(r, recipe=replace(r.recipe, unmask=MostConfident())) for r in DAEDAL]
    caption = tables([*FIXED, *SURVIVAL, *other])["Table 4"].caption
    assert "DAEDAL filled by most-confident; its own rule is a threshold" in caption


def test_daedal_stands_beside_the_paper():
    assert tables()["Table 4"].rows[0][2:6] == ["4", "4", "2 (2.0x)", "1 (4.0x)"]
    assert tables()["Table 5"].rows[0][4:8] == ["100.0 ± 0.0, p = 1", "0.100", "50.0 ± 28.9, p = 1", "0.250"]


def test_three_arms_are_compared_on_the_samples_all_of_them_answered():
    fewer = [*FIXED, *SURVIVAL[:3], *DAEDAL[1:]]
    (row,) = tables(fewer)["Table 5"].rows
    assert row[2:4] == ["2", "100.0 ± 0.0"]
    assert tables(fewer)["Table 4"].rows[0][2] == "2"


def test_drift_is_the_change_since_the_first_step():
    table = tables()["Table 6"]
    assert table.columns[2:] == ["n", "step 2", "step 5", "paper: steps 2, 5, 7, 10"]
    assert table.rows[0][2:5] == ["4", "+3.5 ± 1.1", "-1.0 ± 0.0"]


def test_coverage_asks_whether_the_answers_of_the_baseline_fit():
    (arms,) = arms_of(ALL)
    assert plan_fit(arms.fixed.records, arms.survival.records) == (0.75, (0 + 0 + 10 + 21) / 4)
    shown = {row[1]: row for row in tables()["Table 7"].rows}
    assert list(shown) == ["fixed 56", "fixed 256, the best", "stop at end", "survival", "DAEDAL"]
    assert shown["survival"][6:8] == ["75.0%", "8"]


def test_the_harness_tasks_of_a_benchmark_count_together():
    some = [*records(recipe(length="fixed:256"), [1, 0], task="bbh_cot_fewshot_navigate"),
            *records(recipe(length="fixed:256"), [1, 1], task="bbh_cot_fewshot_snarks")]  # fmt: skip
    others = [replace(r, recipe=recipe(length="survival:256")) for r in some]
    (row,) = tables([*some, *others])["Table 2"].rows
    assert (row[1], row[2], row[3]) == ("BBH", "4", "75.0 ± 25.0")
    assert benchmark_of(some[0]) == "BBH"
    assert task_title("BBH", some) == "BBH"


def test_benchmarks_measured_on_two_machines_are_both_shown():
    elsewhere = [replace(r, hardware="another", task="algebra") for r in [*FIXED[:2], *SURVIVAL[:2]]]
    assert [row[1] for row in tables([*ALL, *elsewhere])["Table 2"].rows] == [
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
        done = command("--records", tmp_path / "m.jsonl", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        outs.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert outs[0] == outs[1]
    assert {"tables.md", "table-1.csv", "table-7.csv", "pareto.png", "pareto.svg"} <= set(outs[0])
    assert list(csv.reader((tmp_path / "one" / "table-2.csv").open()))[1][3] == "75.0 ± 25.0"
    assert done.stdout.startswith("**Table 1.**")


def test_a_table_without_a_baseline_has_no_figures(tmp_path):
    Journal(tmp_path / "m.jsonl").append(DRIFT)
    out = tmp_path / "out"
    run([tmp_path / "m.jsonl"], None, out, figures=True)
    assert {path.name for path in out.iterdir()} == {"tables.md", "table-6.csv"}


def test_records_with_nothing_to_compare_are_refused(tmp_path):
    Journal(tmp_path / "m.jsonl").append(DAEDAL)
    with pytest.raises(SettingError, match="nothing to compare"):
        run([tmp_path], None, None, figures=False)
    with pytest.raises(SettingError, match="fixed canvas"):
        save_figures(DAEDAL, tmp_path)


def test_a_point_of_the_figure_is_on_the_samples_both_answered():
    some = records(recipe(length="survival:256,interpretation=auto"), [1, 1], columns=30)
    panel = Panel.of("m", [*FIXED, *some])
    assert _points(panel)[some[0].recipe] == (0.3, 0.0)


def test_accuracy_against_work_is_labelled_in_words(tmp_path):
    ours = records(Recipe(length=default_length(256), block=32), [1] * 4, columns=20)
    dots = records(recipe(length="survival:256,interpretation=auto"), [1] * 4, columns=30)
    save_figures([*ALL, *ours, *dots], tmp_path, ["svg"])
    drawn = (tmp_path / "pareto.svg").read_text()
    for name in ("fixed canvas", "the paper", "our default"):
        assert drawn.count(f"<!-- {name} -->") == 1
    assert "survival" not in drawn  # no command-line strings


def test_figures_of_many_tasks_and_of_answers_that_never_ended_are_drawn(tmp_path):
    tasks = [f"task {n}" for n in range(12)]
    made = recipe(length="fixed:256")
    found = [r for t in tasks for r in records(made, [1], task=t, finish="truncated")]
    assert len(save_figures(found, tmp_path)) == 6


def test_the_default_is_shown_beside_the_papers_arms():
    """With or without its blocks written down; on another canvas it is another recipe."""
    for block in (None, 32):
        made = Recipe(length=default_length(256), block=block)
        shown = {row[1]: row for row in tables([*ALL, *records(made, [1] * 4)])["Table 7"].rows}
        assert shown["our default"][3] == "100.0 ± 0.0"
    other = Recipe(length=default_length(128))
    assert "our default" not in {row[1] for row in tables([*ALL, *records(other, [1] * 4)])["Table 7"].rows}


def test_a_lone_fixed_canvas_is_not_called_the_best():
    assert [row[1] for row in tables([*FIXED, *SURVIVAL])["Table 7"].rows] == ["fixed 256", "survival"]


def test_a_baseline_that_no_prompt_fitted_is_no_traceback(tmp_path):
    """It spent nothing, and nothing can be a share of that."""
    none = {"finish": "too_long", "cost": RecordedCost(0, 0), "horizon": 0, "length": 0, "score": 0.0}
    fixed = [answer(index=at, recipe=recipe(length="fixed:64"), **none) for at in range(3)]
    short = [answer(index=at, recipe=recipe(length="fixed:8")) for at in range(3)]
    survival = [answer(index=at, recipe=recipe(length="survival:64")) for at in range(3)]
    for table in paper_tables([*fixed, *short, *survival]):
        assert table.markdown()
    assert save_figures([*fixed, *short, *survival], tmp_path)
