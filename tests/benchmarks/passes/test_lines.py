"""Every line on a tiny shape: what it counts is what was done."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lastword
from benchmarks.passes import record as records
from benchmarks.passes.__main__ import measure
from benchmarks.passes.lines import LINES, Bench, Settings
from benchmarks.passes.meter import Activity, Meter
from benchmarks.passes.record import Ceilings, PassLine, PassRecord
from benchmarks.passes.shapes import TINY, random_model, shape_of
from benchmarks.passes.table import against, steps, table
from benchmarks.passes.work import weight_bytes
from lastword.errors import CheckpointError, SettingError

CPU = torch.device("cpu")
SETTINGS = Settings(
    prompt=8, canvas=(12, 6), horizon=10, block=4, rows=3, queue=5, prompts=(10, 30), predicted=12,
    columns=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    """One run over every line."""
    return measure(
        "tiny", SETTINGS, [*LINES], device=CPU, dtype=torch.float32, repeats=1
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(record):
    return {(line.line, line.case): line for line in record.lines}


@pytest.fixture(scope="module")
def bench():
    model = random_model(TINY, CPU, torch.float32)
    return Bench(model, Meter(CPU, 1, 1), SETTINGS, Ceilings(matrix=1, tflops=1.0, gbs=1.0))


def test_every_line_is_measured_and_none_fails_on_a_cpu(record):
    assert {line.line for line in record.lines} == {*LINES}
    for line in record.lines:
        assert line.runs == 1
        assert line.ms is not None
        assert (line.launches, line.busy, line.peak_mb) == (None, None, None)


def test_the_record_says_what_it_was_made_with(record):
    assert (record.shape, record.dtype, record.weights) == ("tiny", "float32", "plain")
    assert record.versions["lastword"] == lastword.__version__
    assert record.settings["prompt"] == 8
    assert record.settings["shape_num_layers"] == 2
    assert record.ceilings.tflops > 0
    assert any("replayed" in note for note in record.notes)
    assert any("tiny-llada-base" in note for note in record.notes)


def test_passes_are_as_wide_as_the_ledger_says(found):
    assert found["passes", "in the loop, 12 slots"].tokens_computed == 20
    assert found["passes", "in the loop, 10 slots"].tokens_computed == 18
    widths = {"none": 18, "prefix": 6, "dual": 4}  # of 18 columns, in each of two blocks of 4
    for name, columns in widths.items():
        assert found["blocks", f"{name}, 4 columns over 18"].tokens_computed == columns
    assert found["widths", "32 columns"].tokens_computed == 32


def test_answers_count_their_probe(found):
    plain, probed = found["answers", "dual"], found["answers", "dual, probe included"]
    assert plain.tokens == 10
    assert plain.forward_passes == 2 + 2 + 1  # blocks of 4, 4 and 2 at 3.25 tokens a pass
    assert probed.forward_passes == plain.forward_passes + 1
    assert probed.tokens_computed == plain.tokens_computed + 8 + 12
    assert plain.tokens_per_forward == pytest.approx(10 / 5)
    assert plain.tokens_per_second == pytest.approx(10 / plain.seconds)
    kept = found["answers", "dual, prompt kept"]
    assert kept.tokens_computed == plain.tokens_computed - 2 * 8  # the prompt is computed once, not in three openings


def test_slow_answers_are_decoded_once_and_with_the_probe_alone(found):
    cases = [case for line, case in found if line == "answers"]
    assert cases == [
        "none, probe included", "prefix, probe included", "dual", "dual, probe included",
        "dual, prompt kept", "dual, prompt kept, probe included",
    ]  # fmt: skip


def test_where_shapes_are_fixed_an_answer_is_decoded_uncaptured_as_well(bench, monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    seen = []
    generate = lastword.generate
    monkeypatch.setattr(
        lastword, "generate", lambda *a, **given: seen.append("on_step" in given) or generate(*a, **given)
    )  # fmt: skip
    only = replace(bench, settings=replace(SETTINGS, caches=("dual",)))
    cases = [line.case for line in only.answers()]
    assert cases == ["dual, not captured, probe included", "dual", "dual, probe included"]
    assert seen == [True, *[False] * 4]  # the others are decoded once to warm up


def test_a_mixed_batch_counts_useful_tokens(found):
    from benchmarks.passes.replay import lengths_for

    for name in ("dual", "dual, prompt kept"):
        line = found["mixed", name]
        assert (line.rows, line.occupancy) == (3, None)
        assert line.tokens == sum(row.useful for row in lengths_for(3, 12))
    queue = found["mixed", "dual, prompt kept, 5 rows through 3 slots"]
    assert queue.rows == 5
    assert 0.9 < queue.occupancy <= 1
    assert queue.useful_share is None  # what is padded on a CPU is not known


def test_a_mixed_batch_counts_useful_columns_where_shapes_are_fixed(bench, monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    dual = replace(bench, settings=replace(SETTINGS, caches=("dual",), block=8))
    together, queue = dual.mixed()
    assert 0 < together.useful_share < 1
    assert 0 < queue.useful_share < 1


def test_only_a_full_pass_and_a_dual_block_are_traced(bench, monkeypatch):
    traced = []

    def difference(meter, less, more, by, *, trace):
        less(), more()
        traced.append(trace)
        return meter.median(lambda: None), Activity(1.0, 400.0, 1e-9) if trace else None

    monkeypatch.setattr(Meter, "difference", difference)
    lines = [line for line in (*bench.passes(), *bench.blocks()) if "bare" not in line.case]
    assert traced == [True, False, False, False, False, True, False]
    assert [line.launches for line in lines] == [1.0 if trace else None for trace in traced]


def test_the_probe_is_held_against_a_bare_pass(found):
    assert found["probe", "12 slots"].ratio > 0


def test_the_plain_loop_is_extrapolated_to_an_answer(found):
    line = found["plain", "12 slots, one token a pass"]
    assert line.seconds == pytest.approx(line.ms * 12 / 1000)
    assert line.forward_passes == 12


@pytest.mark.parametrize(("widest", "widths"), [(2100, [1050, 2100]), (16384, [2048, 4096, 8192, 16384]), (64, [64])])
def test_widths_double_up_to_the_widest(bench, monkeypatch, widest, widths):
    wide, measured = replace(bench, settings=replace(SETTINGS, columns=widest)), []
    monkeypatch.setattr(Bench, "_in_loop", lambda self, *given, many: measured.append(given[1] + given[2]))
    list(wide.widths())
    assert measured == widths


def test_a_folder_gives_its_shape(tmp_path):
    config = "tests/golden/llada-tiny/config.json"
    source = Path(__file__).parents[3] / config
    told = shape_of(str(source))
    assert told.name == "llada-tiny"
    assert told.shape == shape_of(str(source.parent)).shape
    assert told.shape.vocab_size == json.loads(source.read_text())["vocab_size"]
    with pytest.raises(CheckpointError, match="llada-8b, dream-7b, tiny"):
        shape_of("llada-9b")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        shape_of(str(tmp_path))


def test_weights_of_another_kind_are_refused_with_the_reason():
    with pytest.raises(SettingError, match="--weights 'int3' was given; give plain or fp8"):
        random_model(TINY, CPU, torch.float32, weights="int3")


def test_fp8_weights_are_smaller():
    plain, halved = (random_model(TINY, CPU, torch.bfloat16, kind) for kind in ("plain", "fp8"))
    assert weight_bytes(halved) < weight_bytes(plain)


def test_a_tied_head_stays_tied():
    tied = replace(TINY, shape=replace(TINY.shape, tied_head=True))
    network = random_model(tied, CPU, torch.float32).network
    assert network.head.weight is network.embedding.weight


def test_the_same_seed_draws_the_same_weights():
    first, same, other = (random_model(TINY, CPU, torch.float32, seed=seed).network.head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.05)


# Records and tables


def test_a_record_is_read_as_it_was_written(record, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(record.to_json())
    assert records.read(path).to_json() == record.to_json()
    assert table(records.read(path)).startswith("tiny: ")


@pytest.mark.parametrize(
    ("change", "says"), [({"kind": "answer"}, "kind"), ({"lines": [{"line": "a"}]}, "case"), ({"more": 1}, "more")]
)
def test_a_file_that_is_no_record_is_refused_with_the_field(record, tmp_path, change, says):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**json.loads(record.to_json()), **change}))
    with pytest.raises(SettingError, match=rf"other\.json is not a record .*{says}"):
        records.read(path)


def made(*lines, **told):
    usual = {
        "shape": "llada-8b", "hardware": "H", "dtype": "bfloat16", "weights": "plain", "warm_up": 2,
        "versions": {"torch": "2"}, "repeats": 5, "notes": ["how"], "seconds": 1.0, "ceilings": None,
        "settings": {"canvas": [1024, 256], "horizon": 278, "pace": 3.25},
    }  # fmt: skip
    return PassRecord(**{**usual, **told}, lines=list(lines))


PLAIN = PassLine(line="plain", case="1024 slots, one token a pass", ms=70.0, seconds=71.68)
FAST = PassLine(line="answers", case="dual, probe included", seconds=0.7168, tokens_per_second=388.0)


def test_the_table_leaves_out_what_nobody_measured():
    shown = table(made(PLAIN, FAST))
    assert "times the plain loop" in shown
    assert "| answers: dual, probe included | 1 | 0.717 | " in shown
    assert " 100.0 |" in shown
    assert "GPU busy" not in shown
    assert "- how" in shown


def test_the_steps_go_from_the_authors_loop_down():
    full = PassLine(line="passes", case="in the loop, 1024 slots", ms=50.0)
    near = PassLine(line="passes", case="in the loop, 278 slots", ms=30.0)
    probe = PassLine(line="probe", case="1024 slots", ms=60.0)
    none = PassLine(line="answers", case="none, probe included", seconds=3.0)
    slow = PassLine(line="answers", case="dual, not captured, probe included", seconds=1.5)
    fp8 = FAST.model_copy(update={"case": "dual, prompt kept, probe included", "seconds": 0.5})
    runs = [made(FAST, near, full, PLAIN, probe, none, slow), made(fp8, weights="fp8")]
    shown = [line.split(" | ") for line in steps(runs).splitlines()[2:]]
    assert [(name.strip("| "), seconds) for name, seconds, _ in shown] == [
        ("the authors' loop, 1024 slots, one token a pass", "71.680"),
        ("our loop, 1024 slots, one token a pass", "51.200"),
        ("a predicted horizon of 278, one token a pass", "8.400"),
        ("3.25 tokens a pass, no cache", "3.000"),
        ("3.25 tokens a pass, dual cache, not captured", "1.500"),
        ("3.25 tokens a pass, dual cache", "0.717"),
        ("3.25 tokens a pass, dual cache, prompt kept, fp8 weights", "0.500"),
    ]
    assert shown[5][2] == "100.0 |"
    assert steps([made(near.model_copy(update={"case": "bare"}))]) == ""
    assert steps([made(PLAIN, settings={})]) == ""


def test_recipes_are_held_against_the_fixed_canvas_and_an_earlier_run():
    def run(**seconds):
        lines = [PassLine(line="recipes", case=f"m, {arm}", seconds=value) for arm, value in seconds.items()]
        return made(*lines, shape="embedded")

    shown = against(run(fixed=4.0, paper=1.0, fast=0.5), run(fixed=8.0, paper=5.0)).splitlines()
    assert shown[2:] == [
        "| m | fixed | 4.00 | 1.0 | 8.00 | 1.0 | 2.0 |",
        "| m | paper | 1.00 | 4.0 | 5.00 | 1.6 | 5.0 |",
        "| m | fast | 0.50 | 8.0 |  |  |  |",
    ]
