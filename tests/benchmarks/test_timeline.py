import json
import shutil
from pathlib import Path

from benchmarks.timeline import JOBS, SLOTS, Passes, draw_serving

RECORD = Path(__file__).parent.parent.parent / "docs" / "figures" / "serving.json"


def test_the_record_is_of_a_run_that_kept_to_its_slots():
    kept = json.loads(RECORD.read_text())
    answers = kept["answers"]
    assert (len(answers), kept["slots"]) == (JOBS, SLOTS)
    for moment in range(max(own["ended"] for own in answers)):
        assert sum(own["began"] <= moment < own["ended"] for own in answers) <= SLOTS + 1  # one leaves


def test_a_picture_is_drawn_of_it(tmp_path):
    shutil.copy(RECORD, tmp_path)
    draw_serving(tmp_path / RECORD.name)
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")


def test_moments_are_dated_by_passes():
    passes = Passes()
    passes.count_passes(2, row_passes=4, tokens=80, padded_tokens=90, seconds=0.1)
    assert len(passes.ends) == 2
    passes.ends = [1.0, 2.0, 3.0]
    assert [passes.before(moment) for moment in (0.5, 1.5, 9.0)] == [0, 1, 3]
