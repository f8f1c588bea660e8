"""`lastword bench` as a user calls it."""

import io
import json
import re
import subprocess
import sys

import pytest

import lastword
from lastword.bench.recipes import ARMS
from lastword.cli import main

SMALL = (
    "--shape", "tiny", "--device", "cpu", "--prompt", "12", "--canvas", "16", "--horizon", "12",
    "--block", "4", "--repeats", "1",
)  # fmt: skip


@pytest.fixture
def bench(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lastword", "bench", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def test_a_run_writes_a_record_and_prints_it(bench, tmp_path):
    code, out, err = bench(*SMALL, "--lines", "passes,probe")
    assert code == 0, err
    record = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [line["case"] for line in record["lines"]] == [
        "bare model, 16 slots", "in the loop, 16 slots", "bare model, 12 slots",
        "in the loop, 12 slots", "16 slots",
    ]  # fmt: skip
    assert "probe: 16 slots" in out
    assert re.search(r"^ +\d+\.\d s  passes: in the loop, 16 slots: [\d.]+ ms a pass$", err, re.M)
    code, printed, _ = bench("--table", "out/bench.json")
    assert code == 0
    assert printed.strip() in out
    assert bench(*SMALL, "--lines", "probe")[0] == 0  # a record of ours may be replaced


def test_models_are_timed_by_recipe(bench, tmp_path, monkeypatch):
    monkeypatch.setitem(ARMS, "careful", lastword.Recipe(length=lastword.Fixed(8)))
    monkeypatch.setitem(ARMS, "fast", lastword.Recipe(length=lastword.Fixed(4)))
    words = (
        "--models",
        "tiny-llada-base",
        "--arms",
        "careful,fast",
        "--rows",
        "3",
        "--slots",
        "2",
        "--solo",
        "1",
        "--device",
        "cpu",
    )
    code, _, err = bench(*words, "--out", "out.json")
    assert code == 0, err
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["shape"] == "embedded"
    assert [line["case"] for line in record["lines"]] == [
        "tiny-llada-base, careful", "tiny-llada-base, fast",
    ]  # fmt: skip
    assert record["settings"] == {"rows": 3, "slots": 2}
    assert [(line["runs"], line["solo_equal"]) for line in record["lines"]] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--shape", "llada-9b"), "neither a known shape nor a folder"),
        (("--lines", "passes,nonsense"), "'nonsense' is none of passes, blocks"),
        (("--models", "tiny-llada-base", "--arms", "slow"), "'slow' is none of careful"),
        (("--models", "tiny-llada-base", "--shape", "tiny"), "--models was given with --shape"),
        (("--models", "tiny-lada-base",), "did you mean 'tiny-llada-base'"),
        (("--models", "tiny-llada-base", "--rows", "1501"), "1500 validation prompts"),
        (("--slots", "8"), "--slots 8 was given without --models"),
        (("--solo", "8"), "--solo 8 was given without --models"),
        (("--models", "tiny-llada-base", "--rows", "3", "--solo", "4"), "--solo 4 was given for 3 rows"),
        (("--caches", "dual,feature"), "'feature' is none of none, prefix, dual, kept"),
        (("--canvas", "1024;256"), "it takes whole numbers"),
        (("--canvas", "1"), "canvas must be a whole number, 2 or more"),
        (("--repeats", "0"), "repeats must be a whole number, 1 or more"),
        (("--prompt", "1"), "prompt must be a whole number, 2 or more"),
        (("--pace", "0"), "pace must be a number above 0"),
        (("--shape", "tiny", "--weights", "int3"), "--weights 'int3' was given"),
        (("--shape", "tiny", "--dtype", "float8"), "dtype 'float8' is unknown"),
        (("--device", "nowhere"), "cannot be used here"),
        (("--table", "missing.json"), "missing.json is no record of lastword bench"),
        (("--rows", "65", "--shape", "tiny", "--lines", "mixed"), "64 pairs"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_with_the_reason(bench, words, says):
    code, _, err = bench(*words, *(() if "--device" in words else ("--device", "cpu")))
    assert code == 1
    assert says in err


def test_a_file_that_is_no_record_is_left_as_it_is(bench, tmp_path):
    (tmp_path / "notes.json").write_text("my own")
    code, _, err = bench(*SMALL, "--lines", "probe", "--out", "notes.json")
    assert code == 1
    assert "is no record of lastword bench, so it was left as it is" in err
    assert (tmp_path / "notes.json").read_text() == "my own"


@pytest.mark.full
def test_it_runs_without_what_only_other_commands_need(tmp_path):
    """A GPU machine may have torch and little else."""
    blocked = ("rich", "matplotlib", "lm_eval", "datasets", "pyarrow", "beartype", "reasoning_gym")
    code = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
sys.argv = ["lastword", "bench", *{SMALL!r}, "--lines", "probe"]
from lastword.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "bench.json").exists()
