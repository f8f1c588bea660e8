"""`lastword.bench`: timing, totals of a decoding, recipes on models with weights."""

import json
from dataclasses import replace

import pytest
import torch

import lastword
from lastword import bench as module
from lastword.bench import (
    BENCH_RECIPES,
    BenchLine,
    BenchRecord,
    Timer,
    bench,
    bench_prompts,
    read_record,
    time_recipe,
    to_markdown,
)
from lastword.errors import SettingError

CPU = torch.device("cpu")


class Clock:
    """A clock that calls move."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def call(self, seconds):
        def run():
            self.calls += 1
            self.now += seconds

        return run


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_median_is_of_what_follows_the_warm_up(clock):
    times = iter([9.0, 9.0, 0.1, 0.5, 0.2])

    def call():
        clock.now += next(times)

    timed = Timer(CPU, repeats=3, warm_up=2, seconds=100).median(call)
    assert (timed.ms, timed.runs, timed.peak_mb) == (pytest.approx(200), 3, None)


def test_long_calls_are_made_less_often(clock):
    timed = Timer(CPU, repeats=5, warm_up=2, seconds=3).median(clock.call(4))
    assert (timed.ms, timed.runs) == (4000, 1)
    assert clock.calls == 2


def test_a_shorter_call_can_warm_up(clock):
    timed = Timer(CPU, repeats=1).median(clock.call(4), warm=clock.call(1))
    assert (timed.ms, clock.calls, clock.now) == (4000, 2, 5)


def test_recipes_are_timed_on_the_same_prompts(monkeypatch):
    monkeypatch.setitem(BENCH_RECIPES, "fixed", lastword.Recipe(length=lastword.Fixed(4)))
    monkeypatch.setitem(BENCH_RECIPES, "default", lastword.Recipe(length=lastword.Survival(3)))
    shown = []
    record = bench(
        ["tiny-llada-base"], ["fixed", "default"], 3,
        max_batch_size=2, device=CPU, dtype="float32", solo=2, on_line=shown.append,
    )  # fmt: skip
    fixed, default = record.lines
    assert shown == [fixed, default]
    assert (fixed.case, fixed.rows, fixed.runs) == ("tiny-llada-base, fixed", 3, 1)
    assert fixed.forward_passes == 2 * 4  # two rows at a time, all of the same length
    assert default.tokens_computed < fixed.tokens_computed
    for line in (fixed, default):
        assert (line.solo, line.solo_equal) == (2, 2)
    table = to_markdown(record)
    assert "times the fixed canvas" in table
    assert "decoded alone" in table
    assert "peak" not in table  # on a CPU


def test_rows_that_differ_from_their_solo_runs_are_counted(monkeypatch):
    model, generate = lastword.load("tiny-llada-base", device="cpu"), lastword.generate

    def other(*given, seed, **named):
        answer = generate(*given, seed=seed, **named)
        return replace(answer, canvas=[]) if seed == 2 else answer

    monkeypatch.setattr(lastword, "generate", other)
    recipe = lastword.Recipe(length=lastword.Fixed(4))
    line = time_recipe(model, bench_prompts(model, 4), recipe, Timer(CPU, 1), 4, solo=2)  # rows 0 and 2
    assert (line.solo, line.solo_equal) == (2, 1)


def test_a_record_is_read_as_it_was_written_and_with_old_names(tmp_path):
    line = BenchLine(line="recipes", case="m, fast", seconds=1 / 3, forward_passes=4, tokens_computed=10.0)
    record = BenchRecord(
        shape="embedded", hardware="H", dtype="float32", weights="plain", versions={}, warm_up=2, repeats=1,
        settings={"rows": 3}, notes=["how"], seconds=1.0, lines=[line],
    )  # fmt: skip
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(record.to_json())
    old.write_text(new.read_text().replace("forward_passes", "passes").replace("tokens_computed", "columns"))
    rounded = record.model_copy(update={"lines": [line.model_copy(update={"seconds": 0.333333})]})
    assert read_record(new, BenchRecord) == read_record(old, BenchRecord) == rounded
    old.write_text(json.dumps({**json.loads(new.read_text()), "kind": "answer"}))
    with pytest.raises(SettingError, match=r"old\.json .*kind"):
        read_record(old, BenchRecord)


def test_every_named_recipe_can_be_timed():
    named = {name: lastword.Recipe.named(name) for name in ("careful", "fast", "paper", "fixed")}
    assert BENCH_RECIPES.items() >= named.items()
    assert {*BENCH_RECIPES} == {*named, "default", "sampled"}
    assert BENCH_RECIPES["sampled"].sampling.temperature > 0


def test_prompts_are_validation_prompts_as_the_model_is_asked():
    from lastword.tasks import BENCHMARKS, load_frozen

    chat = bench_prompts(lastword.load("tiny-llada-instruct", device="cpu"), 6)
    plain = bench_prompts(lastword.load("tiny-llada-base", device="cpu"), 6)
    firsts = [load_frozen("validation", family)[0].prompt for family in BENCHMARKS]
    assert plain[:5] == firsts
    assert chat[0] == [{"role": "user", "content": firsts[0]}]
    with pytest.raises(SettingError, match="1500 validation prompts"):
        bench_prompts(lastword.load("tiny-llada-base", device="cpu"), 1501)
