"""What fp8 weights cost: the table counts what its record says, and a run writes such a record."""

import pytest

from benchmarks import float8
from benchmarks.float8 import Compared, Record


def test_the_table_counts_what_was_won_and_lost():
    record = Record(
        recipe="fast",
        split="validation",
        per_family=1,
        surroundings={"hardware": "none"},
        models=[
            Compared(model="a", stored="11110", float8="11001", same="11000"),
            Compared(model="b", stored="11111", float8="11111", same="11111"),
        ],
    )
    _, _, first, second, both = float8.table(record).splitlines()
    assert first == "| a | 5 | 80.0 | 60.0 | -20.00 | 1, 2 | 1 | 40.0% |"
    assert second == "| b | 5 | 100.0 | 100.0 | +0.00 | 0, 0 | 1 | 100.0% |"
    assert both == "| all | 10 | 90.0 | 80.0 | -10.00 | 1, 2 | 1 | 70.0% |"


@pytest.mark.full
def test_a_run_asks_both_models_the_same(tmp_path, monkeypatch, capsys):
    out = tmp_path / "float8.json"
    words = ["float8", "run", "--models", "tiny-llada-base", "--per-family", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    float8.main()
    (only,) = float8.read(out).models
    assert len(only.stored) == len(only.float8) == len(only.same) == 5
    assert "| tiny-llada-base | 5 |" in capsys.readouterr().out
