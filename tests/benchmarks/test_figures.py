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
