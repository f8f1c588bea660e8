"""Tests of the figures: their records can be measured again, and figures are drawn from the records."""

import json
from dataclasses import asdict

import pytest

from benchmarks import figures
from benchmarks.passes.record import Ceilings, PassLine, PassRecord
from benchmarks.passes.shapes import LLADA_8B


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_the_survival_record_is_measured_again():
    kept = json.loads((figures.FIGURES / "survival.json").read_text())
    fresh = figures.measure_survival()
    assert fresh["hazard"] == pytest.approx(kept["hazard"], abs=1e-5)
    assert {name: kept[name] for name in ("model", "prompt", "limit")} == {
        name: fresh[name] for name in ("model", "prompt", "limit")
    }


def test_the_survival_figure_is_drawn_from_its_record(tmp_path):
    record = tmp_path / "survival.json"
    record.write_text((figures.FIGURES / "survival.json").read_text())
    figures.draw_survival(record)
    assert is_png(record.with_suffix(".png"))


def test_the_record_of_the_interpretations_is_measured_again():
    kept = json.loads((figures.FIGURES / "interpretations.json").read_text())
    fresh = figures.measure_interpretations()
    assert (kept["prompt"], kept["target"]) == (fresh["prompt"], fresh["target"])
    assert kept["signals"].keys() == fresh["signals"].keys()
    for name, ends in kept["signals"].items():
        for end, values in ends.items():
            assert fresh["signals"][name][end] == pytest.approx(values, abs=1e-4)


def test_the_figure_of_the_interpretations_is_drawn_from_its_record(tmp_path):
    record = tmp_path / "interpretations.json"
    record.write_text((figures.FIGURES / "interpretations.json").read_text())
    figures.draw_interpretations(record)
    assert is_png(record.with_suffix(".png"))


def test_the_figure_of_widths_is_drawn_with_the_arithmetic(tmp_path):
    lines = [
        PassLine(line="widths", case=f"{n} tokens", ms=n / 40, tokens_computed=float(n), peak_mb=n / 5)
        for n in (1024, 2048, 4096)
    ]
    run = PassRecord(
        shape="llada-8b", hardware="H200", dtype="bfloat16", weights="plain", versions={}, warm_up=2,
        repeats=5, notes=[], seconds=1.0, ceilings=Ceilings(matrix=8192, tflops=777.0, gbs=4300.0),
        settings={f"shape_{name}": value for name, value in asdict(LLADA_8B.shape).items()},
        lines=lines,
    )  # fmt: skip
    # 1924 tokens need 28.8 TFLOP without the head.
    assert figures._arithmetic_ms(run, 1924) == pytest.approx(37.1, abs=0.5)
    figures.draw_widths({"llada-8b": run}, tmp_path / "widths.png")
    assert is_png(tmp_path / "widths.png")
