"""Tests of the figure of a server under load: its record, and events located by forward passes."""

import json
import shutil
from pathlib import Path

from benchmarks.timeline import BATCH_SIZE, REQUESTS, PassTimes, draw_serving

RECORD = Path(__file__).parent.parent.parent / "docs" / "figures" / "serving.json"


def test_the_batch_of_the_kept_record_is_never_too_large():
    kept = json.loads(RECORD.read_text())
    answers = kept["answers"]
    assert (len(answers), kept["slots"]) == (REQUESTS, BATCH_SIZE)
    for passes in range(max(answer["ended"] for answer in answers)):
        active = sum(answer["began"] <= passes < answer["ended"] for answer in answers)
        assert active <= BATCH_SIZE + 1  # a row may end in the pass in which its successor starts


def test_the_figure_is_drawn_from_its_record(tmp_path):
    shutil.copy(RECORD, tmp_path)
    draw_serving(tmp_path / RECORD.name)
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")


def test_moments_are_located_by_forward_passes():
    passes = PassTimes()
    passes.count_passes(2, row_passes=4, tokens=80, padded_tokens=90, seconds=0.1)
    assert len(passes.ends) == 2
    passes.ends = [1.0, 2.0, 3.0]
    assert [passes.before(moment) for moment in (0.5, 1.5, 9.0)] == [0, 1, 3]
