"""Tests of the benchmark of forward passes on a CPU."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import cpu_passes


@pytest.mark.full
def test_a_quick_run_measures_every_arm(tmp_path, monkeypatch, capsys):
    out = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["", "--quick", "--out", str(out)])
    cpu_passes.main()
    record = json.loads(out.read_text())
    assert [line["arm"] for line in record["lines"]] == [*cpu_passes.ARMS]
    assert all(line["full_pass_s"] > 0 and line["block_pass_s"] > 0 for line in record["lines"])
    assert capsys.readouterr().out == cpu_passes.table(record) + "\n"


def test_the_kept_record_shows_what_kernels_gain():
    first, *_ = lines = json.loads(cpu_passes.RECORD.read_text())["lines"]
    gains = {line["arm"]: first["full_pass_s"] / line["full_pass_s"] for line in lines}
    assert gains["bfloat16"] >= 3.5
    assert gains["int8"] >= 4.5
    assert first["block_pass_s"] / lines[2]["block_pass_s"] >= 5
    assert lines[2]["peak_memory_gb"] < 0.5 * first["peak_memory_gb"]
