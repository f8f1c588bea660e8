"""The paper's tables from records made by hand, so that every number can be checked."""

import csv
import json

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import SettingError
from lastword.eval.arms import arms_of, benchmark_of, said_as
from lastword.eval.figures import save_figures
from lastword.eval.paper import coverage, paper_tables
from lastword.recipe import Recipe

NO_COST = {"passes": 0, "columns": 0, "squares": 0}
THRESHOLD = {"unmask": "threshold:0.9", "block": 32}


def recipe(**choices):
    return json.loads(Recipe().with_choices(**choices).to_json())


def records(
    made, scores, *, task="word_problems", model="tiny-llada-base", horizon=256, columns=100, **more
):
    """A record a score; `horizon` may be a list."""
    horizons = horizon if isinstance(horizon, list) else [horizon] * len(scores)
    return [
        {
            "kind": "answer", "model": model, "weights": "w", "recipe": made, "seed": 0, "task": task,
            "split": "test", "place": place, "hardware": "a machine", "dtype": "float32", "rows": 1,
            "batch_seconds": 4.0, "horizon": slots, "length": 49, "finish": "ended", "score": float(score),
            "cost": {"passes": slots, "columns": columns, "squares": 0}, "probe_cost": NO_COST, **more,
        }
        for place, (score, slots) in enumerate(zip(scores, horizons))
    ]  # fmt: skip


FIXED = records(recipe(length="fixed:256"), [1, 1, 1, 0])
SURVIVAL = records(
    recipe(length="survival:256"),
    [1, 1, 0, 0],
    horizon=[40, 50, 60, 71],
    columns=25,
    batch_seconds=1.0,
)
MEAN = records(recipe(length="fixed:56"), [0, 0, 0, 0], horizon=56, columns=20)
DAEDAL = records(
    recipe(length="daedal", **THRESHOLD), [1, 1, 1, 1], horizon=64, columns=10, batch_seconds=2.0
)
STOP = records(recipe(length="stop-at-end:fixed:256", block=32), [1, 1, 1, 1], columns=50)
DRIFT = [
    {**r, "kind": "drift", "expected": {"0": 50.0, "2": 52.0 + r["place"], "5": 49.0}}
    for r in SURVIVAL
]
ALL = [*FIXED, *SURVIVAL, *MEAN, *DAEDAL, *STOP, *DRIFT]


def tables(given=ALL):
    return {table.name: table for table in paper_tables(given)}


def test_every_recipe_finds_its_part():
    (arms,) = arms_of(ALL)
    assert arms.fixed.records == FIXED
    assert arms.survival.records == SURVIVAL
    assert arms.daedal.records == DAEDAL
    assert arms.stop.records == STOP
    assert arms.drift == DRIFT
    assert sorted(arms.canvases) == [56, 256]
    assert arms.fixed_at_mean("GSM8K").records == MEAN


def test_other_rules_readings_and_splits_are_not_taken_for_the_papers():
    others = [
        *records(recipe(length="fixed:256", unmask="most-confident:2"), [0, 0]),
        *records(recipe(length="survival:256,reading=auto"), [0, 0]),
        *records(recipe(length="survival:256,estimate=quantile:0.9"), [0, 0]),
        *records(recipe(length="survival:256", **THRESHOLD), [0, 0]),
        *records(recipe(length="survival:256", cache="dual", block=32), [0, 0]),
        *records(recipe(length="fixed:512"), [0] * 4, split="validation"),
    ]
    (arms,) = arms_of([*others, *ALL])
    assert (arms.fixed.records, arms.survival.records) == (FIXED, SURVIVAL)
    assert sorted(arms.canvases) == [56, 256]


def test_speed_is_a_ratio_on_the_same_samples_with_the_machine_named():
    assert tables()["Table 1"].rows == [[
        "tiny-llada-base", "word_problems (for GSM8K)", "4", "4", "1 (4.0x)", "0.22", "0.25",
        "a machine, float32, 1 at once", "91, 16 (5.2x)",
    ]]  # fmt: skip
    untimed = [{**r, "batch_seconds": None} for r in ALL]
    assert "Table 1" not in tables(untimed)
    assert "Table 2" in tables(untimed)


def test_accuracy_has_its_error_and_a_paired_test():
    (row,) = tables()["Table 2"].rows
    assert row[2:7] == ["4", "75.0 ± 25.0", "50.0 ± 28.9", "-25.0 ± 25.0", "1"]
    assert row[7] == "69.9 ± 1.3, 70.0 ± 1.3"


def test_a_fixed_mean_is_compared_with_the_prediction():
    (row,) = tables()["Table 3"].rows
    assert row[2:6] == ["55 ± 12", "56", "-50.0 ± 28.9", "0.5"]
    assert "Table 3" not in tables([*FIXED, *SURVIVAL])


def test_daedal_stands_beside_the_paper():
    assert tables()["Table 4"].rows[0][2:6] == ["4", "4", "2 (2.0x)", "1 (4.0x)"]
    assert tables()["Table 5"].rows[0][4:8] == [
        "100.0 ± 0.0, p = 1",
        "0.100",
        "50.0 ± 28.9, p = 1",
        "0.250",
    ]


def test_three_arms_are_compared_on_the_samples_all_of_them_answered():
    fewer = [*FIXED, *SURVIVAL[:3], *DAEDAL[1:]]
    (row,) = tables(fewer)["Table 5"].rows
    assert row[2:4] == ["2", "100.0 ± 0.0"]
    assert tables(fewer)["Table 4"].rows[0][2] == "2"


def test_drift_is_the_change_since_the_first_step():
    table = tables()["Table 6"]
    assert table.head[2:] == ("step 2", "step 5", "paper: steps 2, 5, 7, 10")
    assert table.rows[0][2:4] == ["+3.5 ± 1.1", "-1.0 ± 0.0"]


def test_coverage_asks_whether_the_answers_of_the_baseline_fit():
    (arms,) = arms_of(ALL)
    assert coverage(arms.fixed, arms.survival) == (0.75, (0 + 0 + 10 + 21) / 4)
    shown = {row[1]: row for row in tables()["Table 7"].rows}
    assert list(shown) == ["fixed 56", "fixed 256", "stop at end", "survival", "DAEDAL"]
    assert shown["survival"][6:8] == ["75.0%", "8"]


def test_the_harness_tasks_of_a_benchmark_count_together():
    some = [*records(recipe(length="fixed:256"), [1, 0], task="bbh_cot_fewshot_navigate"),
            *records(recipe(length="fixed:256"), [1, 1], task="bbh_cot_fewshot_snarks")]  # fmt: skip
    others = [{**r, "recipe": recipe(length="survival:256")} for r in some]
    (row,) = tables([*some, *others])["Table 2"].rows
    assert (row[1], row[2], row[3]) == ("BBH", "4", "75.0 ± 25.0")
    assert benchmark_of(some[0]) == "BBH"
    assert said_as("BBH", some) == "BBH"


def test_a_run_on_two_machines_speaks_for_the_one_with_more_samples():
    few = [{**r, "hardware": "another", "score": 0.0} for r in FIXED[:2]]
    (arms,) = arms_of([*few, *ALL])
    assert arms.fixed.records == FIXED


def test_the_command_writes_the_same_bytes_every_time(tmp_path):
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ALL))
    outs = []
    for name in ("one", "two"):
        given = ["tables", "--records", str(tmp_path / "m.jsonl"), "--out", str(tmp_path / name)]
        done = CliRunner().invoke(app, [*given, "--parquet", str(tmp_path / f"{name}.parquet")])
        assert done.exit_code == 0, done.output
        outs.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert outs[0] == outs[1]
    assert {"tables.md", "table-1.csv", "table-7.csv", "pareto.png", "pareto.svg"} <= set(outs[0])
    assert list(csv.reader((tmp_path / "one" / "table-2.csv").open()))[1][3] == "75.0 ± 25.0"
    assert done.output.startswith("**Table 1.**")


def test_a_table_without_a_baseline_has_no_figures(tmp_path):
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in DRIFT))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["tables", "--records", str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == {"tables.md", "table-6.csv"}


def test_the_export_can_be_queried(tmp_path):
    import pyarrow.parquet

    from lastword.eval.export import export

    export(ALL, tmp_path / "r.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.num_rows == len(ALL)
    assert table.column("cost_columns").to_pylist()[:4] == [100] * 4
    assert json.loads(table.column("recipe").to_pylist()[0])["length"]["name"] == "fixed"
    with pytest.raises(SettingError, match="parquet"):
        export(ALL, tmp_path / "r.xlsx")


def test_records_with_nothing_to_compare_are_refused(tmp_path):
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in DAEDAL))
    done = CliRunner().invoke(app, ["tables", "--records", str(tmp_path)])
    assert done.exit_code == 1
    assert "nothing to compare" in done.output
    with pytest.raises(SettingError, match="fixed canvas"):
        save_figures(DAEDAL, tmp_path)
