"""The records behind the figures are what the code measures today."""

import json

import pytest

from benchmarks import figures


def test_the_survival_record_regenerates():
    kept = json.loads((figures.FIGURES / "survival.json").read_text())
    fresh = figures.measure_survival()
    assert fresh["hazard"] == pytest.approx(kept["hazard"], abs=1e-5)
    assert {name: kept[name] for name in ("model", "prompt", "limit")} == {
        name: fresh[name] for name in ("model", "prompt", "limit")
    }


def test_the_picture_is_drawn_from_the_record(tmp_path):
    record = tmp_path / "survival.json"
    record.write_text((figures.FIGURES / "survival.json").read_text())
    figures.draw_survival(record)
    assert record.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_record_of_the_readings_regenerates():
    kept = json.loads((figures.FIGURES / "readings.json").read_text())
    fresh = figures.measure_readings()
    assert (kept["prompt"], kept["target"]) == (fresh["prompt"], fresh["target"])
    for name, ends in kept["signals"].items():
        for end, values in ends.items():
            assert fresh["signals"][name][end] == pytest.approx(values, abs=1e-4)


def test_the_readings_are_drawn_from_their_record(tmp_path):
    record = tmp_path / "readings.json"
    record.write_text((figures.FIGURES / "readings.json").read_text())
    figures.draw_readings(record)
    assert record.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_widths_are_drawn_beside_their_arithmetic(tmp_path):
    from dataclasses import asdict

    from benchmarks.passes.record import Ceilings, PassLine, PassRecord
    from benchmarks.passes.shapes import LLADA_8B

    wide = [
        PassLine(line="widths", case=f"{n} columns", ms=n / 40, tokens_computed=float(n), peak_mb=n / 5)
        for n in (1024, 2048, 4096)
    ]
    run = PassRecord(
        shape="llada-8b", hardware="H200", dtype="bfloat16", weights="plain", versions={}, warm_up=2,
        repeats=5, notes=[], seconds=1.0, ceilings=Ceilings(matrix=8192, tflops=777.0, gbs=4300.0),
        settings={f"shape_{name}": value for name, value in asdict(LLADA_8B.shape).items()},
        lines=wide,
    )  # fmt: skip
    # 1924 columns need 27.6 TFLOP without the head.
    assert figures._least_ms(run, 1924) == pytest.approx(37.1, abs=0.5)
    figures.draw_widths({"llada-8b": run}, tmp_path / "widths.png")
    assert (tmp_path / "widths.png").read_bytes().startswith(b"\x89PNG")
