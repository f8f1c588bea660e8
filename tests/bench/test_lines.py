"""Every line on a tiny shape: what it counts is what was done."""

import json
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import lastword
from lastword.bench import lines as module
from lastword.bench import record as records
from lastword.bench.lines import LINES, Bench, Settings, caches, computed_columns
from lastword.bench.meter import Meter
from lastword.bench.recipes import ARMS, prompts_for, recipe_lines
from lastword.bench.record import Ceilings, Line, Record
from lastword.bench.run import bench_shape
from lastword.bench.shapes import TINY, architecture_of, random_model
from lastword.bench.table import steps, table
from lastword.bench.work import weight_bytes
from lastword.cache import DualCache
from lastword.errors import CheckpointError, SettingError

CPU = torch.device("cpu")
SETTINGS = Settings(
    prompt=8, canvas=(12, 6), horizon=10, block=4, rows=3, prompts=(10, 30), predicted=12, columns=32
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    """One run over every line."""
    return bench_shape(
        "tiny", SETTINGS, [*LINES], device=CPU, dtype=torch.float32, weights="plain", repeats=1,
        show=lambda line: None,
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
    assert record.settings["shape_layers"] == 2
    assert record.ceilings.tflops > 0
    assert any("replayed" in note for note in record.notes)
    assert any("tiny-llada-base" in note for note in record.notes)


def test_passes_are_as_wide_as_the_ledger_says(found):
    assert found["passes", "in the loop, 12 slots"].columns == 20
    assert found["passes", "in the loop, 10 slots"].columns == 18
    widths = {"none": 18, "prefix": 6, "dual": 4}  # of 18 columns, in each of two blocks of 4
    for name, columns in widths.items():
        assert found["blocks", f"{name}, 4 columns over 18"].columns == columns
    assert found["widths", "32 columns"].columns == 32


def test_answers_count_their_probe(found):
    plain, probed = found["answers", "dual"], found["answers", "dual, probe included"]
    assert plain.tokens == 10
    assert plain.passes == 2 + 2 + 1  # blocks of 4, 4 and 2 at 3.25 tokens a pass
    assert probed.passes == plain.passes + 1
    assert plain.tokens_per_forward == pytest.approx(10 / 5)
    assert plain.tokens_per_second == pytest.approx(10 / plain.seconds)


def test_a_mixed_batch_counts_useful_tokens_and_columns(found):
    from lastword.bench.replay import lengths_for

    line = found["mixed", "dual"]
    assert line.rows == 3
    assert line.tokens == sum(row.useful for row in lengths_for(3, 12))
    assert 0 < line.useful_columns < 1  # rows of unequal length are padded


def test_columns_are_counted_where_they_are_computed(bench):
    (answer,) = [bench._generate([1, 2, 3], 16, 4.0, DualCache())]
    counted = computed_columns(
        bench.model, lambda: bench._generate([1, 2, 3], 16, 4.0, DualCache())
    )
    assert counted == answer.cost.columns  # one row: nothing is padded
    assert computed_columns(bench.model, lambda: None) == 0


def test_a_share_that_cannot_be_counted_is_left_out(bench, monkeypatch):
    monkeypatch.setattr(module, "computed_columns", lambda model, call: 1)
    (line,) = bench.mixed()
    assert line.useful_columns is None


def test_the_probe_is_held_against_a_bare_pass(found):
    assert found["probe", "12 slots"].ratio > 0


def test_the_plain_loop_is_extrapolated_to_an_answer(found):
    line = found["plain", "12 slots, one token a pass"]
    assert line.seconds == pytest.approx(line.ms * 12 / 1000)
    assert line.passes == 12


def test_widths_double_up_to_the_widest(bench):
    wide = replace(bench, settings=replace(SETTINGS, columns=2100))
    measured = []
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(Bench, "_in_loop", lambda self, *given: measured.append(given[1] + given[2]))
        list(wide.widths())
    assert measured == [1050, 2100]


def test_a_dual_cache_that_keeps_the_prompt_is_measured_as_well(monkeypatch):
    @dataclass(frozen=True)
    class Keeps(DualCache):
        prompt_every: int = 1

    assert [*caches()] == ["none", "prefix", "dual"] or "dual, prompt kept" in caches()
    monkeypatch.setattr(module, "DualCache", Keeps)
    assert caches()["dual, prompt kept"] == Keeps(prompt_every=2**20)


def test_a_folder_gives_its_shape(tmp_path):
    config = "tests/golden/llada-tiny/config.json"
    source = Path(__file__).parent.parent.parent / config
    told = architecture_of(str(source))
    assert told.name == "llada-tiny"
    assert told.shape == architecture_of(str(source.parent)).shape
    assert told.shape.vocabulary == json.loads(source.read_text())["vocab_size"]
    with pytest.raises(CheckpointError, match="llada-8b, dream-7b, tiny"):
        architecture_of("llada-9b")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        architecture_of(str(tmp_path))


def test_weights_of_another_kind_are_refused_with_the_reason():
    with pytest.raises(SettingError, match="--weights 'int3' was given; give plain or fp8"):
        random_model(TINY, CPU, torch.float32, weights="int3")


def test_fp8_weights_are_halved_or_refused(monkeypatch):
    if find_spec("lastword.models.float8"):
        plain, halved = (random_model(TINY, CPU, torch.bfloat16, kind) for kind in ("plain", "fp8"))
        assert weight_bytes(halved) < weight_bytes(plain)
    monkeypatch.setitem(sys.modules, "lastword.models.float8", None)
    with pytest.raises(SettingError, match="keeps weights as they are"):
        random_model(TINY, CPU, torch.float32, weights="fp8")


def test_a_tied_head_stays_tied():
    tied = replace(TINY, shape=replace(TINY.shape, tied_head=True))
    network = random_model(tied, CPU, torch.float32).network
    assert network.head.weight is network.embedding.weight


def test_the_same_seed_draws_the_same_weights():
    first, same, other = (
        random_model(TINY, CPU, torch.float32, seed=seed).network.head.weight for seed in (1, 1, 2)
    )
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
    ("change", "says"),
    [({"kind": "answer"}, "kind"), ({"lines": [{"line": "a"}]}, "case"), ({"more": 1}, "more")],
)
def test_a_file_that_is_no_record_is_refused_with_the_field(record, tmp_path, change, says):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**json.loads(record.to_json()), **change}))
    with pytest.raises(SettingError, match=rf"other\.json is no record .*{says}"):
        records.read(path)


def made(*lines, **told):
    usual = {
        "shape": "llada-8b", "hardware": "H", "dtype": "bfloat16", "weights": "plain", "warm_up": 2,
        "versions": {"torch": "2"}, "repeats": 5, "notes": ["how"], "seconds": 1.0, "ceilings": None,
        "settings": {"canvas": [1024, 256], "horizon": 278, "pace": 3.25},
    }  # fmt: skip
    return Record(**{**usual, **told}, lines=list(lines))


PLAIN = Line(line="plain", case="1024 slots, one token a pass", ms=70.0, seconds=71.68)
FAST = Line(line="answers", case="dual, probe included", seconds=0.7168, tokens_per_second=388.0)


def test_the_table_leaves_out_what_nobody_measured():
    shown = table(made(PLAIN, FAST))
    assert "times the plain loop" in shown
    assert "| answers: dual, probe included | 1 | 0.717 | " in shown
    assert " 100.0 |" in shown
    assert "GPU busy" not in shown
    assert "- how" in shown


def test_the_steps_go_from_the_authors_loop_down():
    full = Line(line="passes", case="in the loop, 1024 slots", ms=50.0)
    near = Line(line="passes", case="in the loop, 278 slots", ms=30.0)
    probe = Line(line="probe", case="1024 slots", ms=60.0)
    shown = steps({"llada-8b": made(FAST, near, full, PLAIN, probe)}).splitlines()[2:]
    assert [line.split("|")[2].strip() for line in shown] == ["71.680", "51.200", "8.400", "0.717"]
    assert shown[-1].split("|")[3].strip() == "100.0"
    assert "(llada-8b)" not in shown[0]
    assert "(fp8)" in steps({"llada-8b": made(PLAIN), "fp8": made(FAST)})
    assert steps({"none": made(near.model_copy(update={"case": "bare"}))}) == ""


# Recipes on models with weights


def test_recipes_are_timed_on_the_same_prompts(monkeypatch):
    monkeypatch.setitem(ARMS, "fixed", lastword.Recipe(length=lastword.Fixed(24)))
    monkeypatch.setitem(ARMS, "default", lastword.Recipe(length=lastword.Survival(16)))
    model = lastword.load("tiny-llada-base", device="cpu")
    fixed, default = recipe_lines(
        "tiny-llada-base", model, Meter(CPU, 1, 1, seconds=0.0), ["fixed", "default"], 2, None
    )
    assert (fixed.case, fixed.rows, fixed.passes) == ("tiny-llada-base, fixed", 2, 24)
    assert default.columns < fixed.columns
    shown = table(made(fixed, default, shape="embedded"))
    assert "times the fixed canvas" in shown
    assert {"fixed", "paper", "default", "fast", "sampled"} <= {*ARMS}


def test_prompts_are_validation_prompts_as_the_model_is_asked():
    from lastword.tasks import BENCHMARKS, load_frozen

    chat = prompts_for(lastword.load("tiny-llada-instruct", device="cpu"), 6)
    plain = prompts_for(lastword.load("tiny-llada-base", device="cpu"), 6)
    firsts = [load_frozen("validation", family)[0].prompt for family in BENCHMARKS]
    assert plain[:5] == firsts
    assert chat[0] == [{"role": "user", "content": firsts[0]}]
    with pytest.raises(SettingError, match="1500 validation prompts"):
        prompts_for(lastword.load("tiny-llada-base", device="cpu"), 1501)
