"""Tests of the measurements on a tiny shape, of their records, and of their tables."""

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
from benchmarks.passes.replay import lengths_for
from benchmarks.passes.shapes import TINY, random_model, shape_of
from benchmarks.passes.table import recipes_table, shape_table, steps_table, table
from benchmarks.passes.work import weight_bytes
from lastword.errors import CheckpointError, SettingError

CPU = torch.device("cpu")
SETTINGS = Settings(
    prompt=8, canvas=(12, 6), horizon=10, block=4, batch_size=3, queue=5, prompts=(10, 30), predicted=12,
    tokens=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    """The record of one run with every kind of line."""
    return measure("tiny", SETTINGS, [*LINES], device=CPU, dtype=torch.float32, repeats=1)


@pytest.fixture(scope="module")
def lines(record):
    """The lines of the run by kind and case."""
    return {(line.line, line.case): line for line in record.lines}


@pytest.fixture(scope="module")
def bench():
    model = random_model(TINY, CPU, torch.float32)
    return Bench(model, Meter(CPU, 1, 1), SETTINGS, Ceilings(matrix=1, tflops=1.0, gbs=1.0))


def test_every_kind_of_line_is_measured_on_a_cpu(record):
    assert {line.line for line in record.lines} == {*LINES}
    for line in record.lines:
        assert line.runs == 1
        assert line.ms is not None
        assert (line.launches, line.busy, line.peak_mb) == (None, None, None)


def test_the_record_contains_shape_versions_settings_and_notes(record):
    assert (record.shape, record.dtype, record.weights) == ("tiny", "float32", "plain")
    assert record.versions["lastword"] == lastword.__version__
    assert record.settings["prompt"] == 8
    assert record.settings["shape_num_layers"] == 2
    assert record.ceilings.tflops > 0
    assert any("replayed" in note for note in record.notes)
    assert any("tiny-llada-base" in note for note in record.notes)


def test_the_tokens_of_a_pass_depend_on_canvas_and_cache(lines):
    assert lines["passes", "decoding loop, 12 slots"].tokens_computed == 20
    assert lines["passes", "decoding loop, 10 slots"].tokens_computed == 18
    for name, tokens in {"none": 18, "prefix": 6, "dual": 4}.items():  # of 18 tokens, in each of two blocks of 4
        assert lines["blocks", f"{name}, 4 tokens of 18"].tokens_computed == tokens
    assert lines["widths", "32 tokens"].tokens_computed == 32


def test_the_cost_of_an_answer_includes_its_probe(lines):
    plain, probed = lines["answers", "dual"], lines["answers", "dual, probe included"]
    assert plain.tokens == 10
    assert plain.forward_passes == 2 + 2 + 1  # blocks of 4, 4 and 2 slots with 3.25 tokens per pass
    assert probed.forward_passes == plain.forward_passes + 1
    assert probed.tokens_computed == plain.tokens_computed + 8 + 12
    assert plain.tokens_per_forward == pytest.approx(10 / 5)
    assert plain.tokens_per_second == pytest.approx(10 / plain.seconds)
    once = lines["answers", "dual, prompt computed once"]
    assert once.tokens_computed == plain.tokens_computed - 2 * 8  # the prompt is not computed again for later blocks


def test_slow_answers_are_measured_with_the_probe_only(lines):
    cases = [case for line, case in lines if line == "answers"]
    assert cases == [
        "none, probe included", "prefix, probe included", "dual", "dual, probe included",
        "dual, prompt computed once", "dual, prompt computed once, probe included",
    ]  # fmt: skip


def test_an_answer_is_also_measured_without_cuda_graphs_where_shapes_are_static(bench, monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    without_graphs = []
    generate = lastword.generate

    def recorded(*arguments, **options):
        without_graphs.append("on_step" in options)
        return generate(*arguments, **options)

    monkeypatch.setattr(lastword, "generate", recorded)
    dual = replace(bench, settings=replace(SETTINGS, caches=("dual",)))
    cases = [line.case for line in dual.answers()]
    assert cases == ["dual, no CUDA graphs, probe included", "dual", "dual, probe included"]
    assert without_graphs == [True, *[False] * 4]  # the others are also decoded once as a warm-up


def test_a_mixed_batch_counts_useful_tokens(lines):
    for name in ("dual", "dual, prompt computed once"):
        line = lines["mixed", name]
        assert (line.rows, line.occupancy) == (3, None)
        assert line.tokens == sum(row.useful for row in lengths_for(3, 12))
    queue = lines["mixed", "dual, prompt computed once, 5 prompts in a batch of 3"]
    assert queue.rows == 5
    assert 0.9 < queue.occupancy <= 1
    assert queue.useful_share is None  # padding on a CPU is not known


def test_a_mixed_batch_has_a_share_of_useful_tokens_where_shapes_are_static(bench, monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    dual = replace(bench, settings=replace(SETTINGS, caches=("dual",), block=8))
    together, queue = dual.mixed()
    assert 0 < together.useful_share < 1
    assert 0 < queue.useful_share < 1


def test_only_a_full_pass_and_a_block_with_the_dual_cache_are_traced(bench, monkeypatch):
    traced = []

    def difference(meter, less, more, by, *, trace):
        less(), more()
        traced.append(trace)
        return meter.median(lambda: None), Activity(1.0, 400.0, 1e-9) if trace else None

    monkeypatch.setattr(Meter, "difference", difference)
    lines = [line for line in (*bench.passes(), *bench.blocks()) if "bare" not in line.case]
    assert traced == [True, False, False, False, False, True, False]
    assert [line.launches for line in lines] == [1.0 if trace else None for trace in traced]


def test_the_probe_is_compared_with_a_pass_of_the_bare_model(lines):
    assert lines["probe", "12 slots"].ratio > 0


def test_the_plain_loop_is_extrapolated_to_an_answer(lines):
    line = lines["plain", "12 slots, one token per forward pass"]
    assert line.seconds == pytest.approx(line.ms * 12 / 1000)
    assert line.forward_passes == 12


@pytest.mark.parametrize(("widest", "widths"), [(2100, [1050, 2100]), (16384, [2048, 4096, 8192, 16384]), (64, [64])])
def test_widths_double_up_to_the_widest(bench, monkeypatch, widest, widths):
    wide, measured = replace(bench, settings=replace(SETTINGS, tokens=widest)), []

    def in_loop(self, line, prompt, slots, *rest, many):
        measured.append(prompt + slots)

    monkeypatch.setattr(Bench, "_in_loop", in_loop)
    list(wide.widths())
    assert measured == widths


def test_the_shape_of_a_checkpoint_is_read_from_its_folder_or_config(tmp_path):
    config = Path(__file__).parents[3] / "tests/golden/llada-tiny/config.json"
    known = shape_of(str(config))
    assert known.name == "llada-tiny"
    assert known.shape == shape_of(str(config.parent)).shape
    assert known.shape.vocab_size == json.loads(config.read_text())["vocab_size"]
    with pytest.raises(CheckpointError, match="llada-8b, dream-7b, tiny"):
        shape_of("llada-9b")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        shape_of(str(tmp_path))


def test_unknown_quantizations_are_rejected():
    with pytest.raises(SettingError, match=r"quantization='int3'.*must be 'fp8' or 'int8'"):
        random_model(TINY, CPU, torch.float32, quantization="int3")


def test_fp8_weights_are_smaller():
    plain, fp8 = (random_model(TINY, CPU, torch.bfloat16, quantization) for quantization in (None, "fp8"))
    assert weight_bytes(fp8) < weight_bytes(plain)


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


def test_a_written_record_is_read(record, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(record.to_json())
    assert records.read(path).to_json() == record.to_json()
    assert table(records.read(path)).startswith("tiny: ")


@pytest.mark.parametrize(
    ("change", "field"), [({"kind": "answer"}, "kind"), ({"lines": [{"line": "a"}]}, "case"), ({"more": 1}, "more")]
)
def test_an_invalid_record_is_rejected_with_the_name_of_the_field(record, tmp_path, change, field):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**json.loads(record.to_json()), **change}))
    with pytest.raises(SettingError, match=rf"other\.json is not a record .*{field}"):
        records.read(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in the loop, 12 slots", "decoding loop, 12 slots"),
        ("12 slots, one token a pass", "12 slots, one token per forward pass"),
        ("dual, prompt kept, probe included", "dual, prompt computed once, probe included"),
        ("dual, not captured, probe included", "dual, no CUDA graphs, probe included"),
        ("none, 4 columns over 18", "none, 4 tokens of 18"),
        ("32 columns", "32 tokens"),
        ("dual, prompt kept, 5 rows through 3 slots", "dual, prompt computed once, 5 prompts in a batch of 3"),
    ],
)
def test_cases_of_earlier_records_are_renamed(lines, old, new):
    assert PassLine(line="passes", case=old).case == new
    static_only = "dual, no CUDA graphs, probe included"  # not measured on a CPU
    assert new in {case for _, case in lines} | {static_only}


def record_of(*lines, **fields):
    """Return a record of an 8B shape with these lines."""
    usual = {
        "shape": "llada-8b", "hardware": "H", "dtype": "bfloat16", "weights": "plain", "warm_up": 2,
        "versions": {"torch": "2"}, "repeats": 5, "notes": ["a note"], "seconds": 1.0, "ceilings": None,
        "settings": {"canvas": [1024, 256], "horizon": 278, "tokens_per_pass": 3.25},
    }  # fmt: skip
    return PassRecord(**{**usual, **fields}, lines=list(lines))


PLAIN = PassLine(line="plain", case="1024 slots, one token per forward pass", ms=70.0, seconds=71.68)
FULL = PassLine(line="passes", case="decoding loop, 1024 slots", ms=50.0, compute_share=0.8, memory_share=0.1)
SHORT = PassLine(line="passes", case="decoding loop, 278 slots", ms=30.0)
PROBE = PassLine(line="probe", case="1024 slots", ms=60.0)
DUAL = PassLine(line="answers", case="dual, probe included", seconds=0.7168, tokens_per_second=388.0)


def test_the_table_leaves_out_columns_without_values():
    text = table(record_of(PLAIN, DUAL))
    assert "speedup over the plain loop" in text
    assert "| answers: dual, probe included | 1 | 0.717 | " in text
    assert " 100.0 |" in text
    assert "GPU busy" not in text
    assert "- a note" in text


def test_the_steps_are_sorted_from_the_plain_loop_to_the_fastest_recipe():
    none = PassLine(line="answers", case="none, probe included", seconds=3.0)
    slow = PassLine(line="answers", case="dual, no CUDA graphs, probe included", seconds=1.5)
    fp8 = DUAL.model_copy(update={"case": "dual, prompt computed once, probe included", "seconds": 0.5})
    runs = [record_of(DUAL, SHORT, FULL, PLAIN, PROBE, none, slow), record_of(fp8, weights="fp8")]
    head, _, *rows = steps_table({"llada-8b": runs}).splitlines()
    assert head == "| decoding | llada-8b, seconds |"
    assert rows == [
        "| authors' loop, 1024 slots | 71.680 (1.0x) |",
        "| our loop, 1024 slots | 51.200 (1.4x) |",
        "| predicted canvas of 278 slots | 8.400 (8.5x) |",
        "| 3.25 tokens per forward pass, no cache | 3.000 (23.9x) |",
        "| 3.25 tokens per forward pass, dual cache, no CUDA graphs | 1.500 (47.8x) |",
        "| 3.25 tokens per forward pass, dual cache | 0.717 (100.0x) |",
        "| 3.25 tokens per forward pass, dual cache, prompt computed once, fp8 weights | 0.500 (143.4x) |",
    ]


def test_the_steps_of_every_shape_have_a_column():
    other = record_of(PLAIN.model_copy(update={"seconds": 10.0}), DUAL.model_copy(update={"seconds": 0.1}))
    runs = {"llada-8b": [record_of(PLAIN, FULL)], "dream-7b": [other], "empty": [record_of(SHORT)]}
    head, _, *rows = steps_table(runs).splitlines()
    assert head == "| decoding | llada-8b, seconds | dream-7b, seconds |"
    assert rows == [
        "| authors' loop, 1024 slots | 71.680 (1.0x) | 10.000 (1.0x) |",
        "| our loop, 1024 slots | 51.200 (1.4x) |  |",
        "| 3.25 tokens per forward pass, dual cache |  | 0.100 (100.0x) |",
    ]


def test_records_without_steps_have_no_table_of_steps():
    assert steps_table({}) == ""
    assert steps_table({"llada-8b": [record_of(SHORT.model_copy(update={"case": "bare model"}))]}) == ""
    assert steps_table({"llada-8b": [record_of(PLAIN, settings={})]}) == ""


def test_records_of_earlier_versions_have_the_tokens_per_pass_as_pace():
    old = record_of(PLAIN, DUAL, settings={"canvas": [1024], "horizon": 278, "pace": 3.25})
    assert "| 3.25 tokens per forward pass, dual cache |" in steps_table({"llada-8b": [old]})


def test_the_table_of_a_shape_shows_passes_of_all_weight_formats():
    bare = PassLine(line="passes", case="bare model, 1024 slots", ms=45.0)
    other_canvas = PassLine(line="passes", case="decoding loop, 256 slots", ms=29.0)
    block = PassLine(line="blocks", case="dual, prompt computed once, 32 tokens of 1178", ms=9.0)
    mixed = PassLine(line="mixed", case="dual", ms=20.0, rows=16, tokens_per_second=3000.0)
    queue = mixed.model_copy(update={"case": "dual, prompt computed once, 64 prompts in a batch of 16", "rows": 64})
    fp8 = PassLine(line="blocks", case="none, 32 tokens of 1178", ms=5.0)
    plain = record_of(bare, FULL, SHORT, other_canvas, PROBE, block, mixed, queue, DUAL)
    head, _, *rows = shape_table([plain, record_of(fp8, weights="fp8")]).splitlines()
    assert head == "| forward pass | ms | of peak compute | of peak bandwidth | tokens/s |"
    assert rows == [
        "| full pass, 1024 slots | 50.00 | 80% | 10% |  |",
        "| full pass, 278 slots | 30.00 |  |  |  |",
        "| probe, 1024 slots | 60.00 |  |  |  |",
        "| block, dual cache, prompt computed once | 9.00 |  |  |  |",
        "| 16 prompts at the same time, dual cache | 20.00 |  |  | 3,000 |",
        "| 64 prompts in a batch of 16, dual cache, prompt computed once | 20.00 |  |  | 3,000 |",
        "| block, no cache, fp8 weights | 5.00 |  |  |  |",
    ]


def test_recipes_are_compared_with_the_fixed_canvas_of_their_model():
    seconds = {"a, fixed": 4.0, "a, paper": 1.0, "a, fast": 0.5, "b, fixed": 8.0, "b, paper": 5.0, "c, fast": 3.0}
    lines = [PassLine(line="recipes", case=case, seconds=value) for case, value in seconds.items()]
    assert recipes_table(record_of(*lines, shape="embedded")).splitlines() == [
        "| recipe | a | b | c |",
        "|---|---:|---:|---:|",
        "| fixed | 4.00 (1.0x) | 8.00 (1.0x) |  |",
        "| paper | 1.00 (4.0x) | 5.00 (1.6x) |  |",
        "| fast | 0.50 (8.0x) |  | 3.00 |",
    ]
