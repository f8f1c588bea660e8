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
