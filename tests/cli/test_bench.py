"""`lastword bench` as a user calls it."""

import json
import subprocess
import sys

import pytest

import lastword
from lastword.bench import BENCH_RECIPES


@pytest.fixture
def bench(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: command("bench", *words)


def test_models_are_timed_by_recipe(bench, tmp_path, monkeypatch):
    monkeypatch.setitem(BENCH_RECIPES, "careful", lastword.Recipe(length=lastword.Fixed(3)))
    monkeypatch.setitem(BENCH_RECIPES, "fast", lastword.Recipe(length=lastword.Fixed(2)))
    words = ("--recipes", "careful,fast", "--limit", "3", "--batch-size", "2", "--solo", "1")
    code, out, err = bench(*words, "--device", "cpu")
    assert code == 0, err
    record = json.loads((tmp_path / "out" / "bench.json").read_text())
    cases = ["tiny-llada-base, careful", "tiny-llada-base, fast"]
    assert [line["case"] for line in record["lines"]] == cases
    assert record["settings"] == {"rows": 3, "slots": 2}
    assert [(line["runs"], line["solo_equal"]) for line in record["lines"]] == [(1, 1), (1, 1)]
    assert all(f"{case}: " in err and case in out for case in cases)
    code, printed, _ = bench("--table", "out/bench.json")
    assert code == 0
    assert printed.strip() in out
    assert bench("--recipes", "fast", "--limit", "1", "--device", "cpu")[0] == 0  # replaces its record


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--recipes", "slow"), ("--recipes", "'slow'", "careful")),
        (("--models", "tiny-lada-base"), ("did you mean 'tiny-llada-base'",)),
        (("--limit", "1501"), ("1500 validation prompts",)),
        (("--limit", "0"), ("limit", "1 or more")),
        (("--limit", "3", "--solo", "4"), ("solo", "at most 3")),
        (("--repeats", "0"), ("repeats", "1 or more")),
        (("--batch-size", "0"), ("max_batch_size", "1 or more")),
        (("--dtype", "float8"), ("dtype", "'float8'")),
        (("--device", "nowhere"), ("nowhere",)),
        (("--table", "missing.json"), ("missing.json", "not a record")),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(bench, words, facts):
    code, _, err = bench(*words, *(() if "--device" in words else ("--device", "cpu")))
    assert code == 1
    assert all(fact in err for fact in facts), err


def test_a_file_that_is_not_a_record_is_not_replaced(bench, tmp_path):
    (tmp_path / "notes.json").write_text("my own")
    code, _, err = bench("--out", "notes.json")
    assert code == 1
    assert "notes.json exists and is not a record of lastword bench" in err
    assert (tmp_path / "notes.json").read_text() == "my own"


@pytest.mark.full
def test_it_runs_without_the_packages_of_other_commands(tmp_path):
    """A GPU machine may have torch and little else."""
    code = """
import sys
for name in ("matplotlib", "lm_eval", "datasets", "pyarrow", "beartype", "reasoning_gym", "openai"):
    sys.modules[name] = None
sys.argv = ["lastword", "bench", "--recipes", "fast", "--limit", "1", "--device", "cpu"]
from lastword.cli import main
main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "bench.json").exists()
