"""Tests of the animation: it shows its record, and the record can be measured again."""

import json

import pytest
from PIL import Image

from benchmarks import race

LEDGER = {"probe_forward_passes": 1, "probe_tokens_computed": 12, "forward_passes": 2, "tokens_computed": 9}
SHORT = {
    "text": "ab", "horizon": 3, "end": 3, "ledger": LEDGER,
    "lengths": {"survival": [1.0, 1.0, 0.5, 0.1] + [0.0] * 5},
    "frames": [
        {"forward_passes": 0, "tokens_computed": 0, "slots": 3, "set": []},
        {"forward_passes": 1, "tokens_computed": 7, "slots": 3, "set": [[0, "a"], [2, ""]]},
        {"forward_passes": 2, "tokens_computed": 14, "slots": 3, "set": [[1, "b"]]},
    ],
}  # fmt: skip
LONG = {
    "text": "ab", "horizon": 8, "end": 3, "lengths": None,
    "ledger": {**LEDGER, "probe_forward_passes": 0, "probe_tokens_computed": 0},
    "frames": [
        {
            "forward_passes": n, "tokens_computed": 12 * n, "slots": 8,
            "set": [[8 - n, "xba"[n - 6] if n > 5 else ""]][: n],
        }
        for n in range(9)
    ],
}  # fmt: skip
TINY = {"model": "m", "prompt": "What?", "slots": 8, "runs": {"predicted": SHORT, "fixed": LONG}}


def test_both_canvases_advance_together_and_a_finished_one_does_not_change():
    frames = [frame for _, frame in race.moments(TINY, step=1)]
    blank, running = frames[: race.SHRINKS], frames[race.SHRINKS :]
    assert blank[0]["predicted"].texts == blank[0]["fixed"].texts == (None,) * 8
    assert [len(frame["predicted"].texts) for frame in blank] == [8, 8, 7, 7, 6, 5, 5, 4]
    assert all(frame["fixed"] == blank[0]["fixed"] for frame in blank)
    passes = [(frame["predicted"].forward_passes, frame["fixed"].forward_passes) for frame in running]
    assert passes == [(min(n, 2) + 1, n) for n in range(9)]  # the probe is a forward pass
    assert running[-1]["predicted"].texts == ("a", "b", "")
    assert (running[-1]["predicted"].tokens_computed, running[-1]["fixed"].tokens_computed) == (26, 96)
    assert [frame["predicted"].done for frame in running] == [False] * 2 + [True] * 7


def test_the_text_of_an_answer_has_a_dot_for_every_mask():
    lane = race.Lane(SHORT, 8)
    assert [lane.text_at(lane.at(passes)) for passes in (0, 1, 2)] == ["···", "a·", "ab"]


def test_records_of_earlier_versions_are_read(tmp_path):
    """The names of costs have changed."""
    path = tmp_path / "race.json"
    path.write_text(json.dumps({"ledger": {"passes": 1, "columns": 2, "probe_passes": 3, "probe_columns": 4}}))
    assert race.read_record(path)["ledger"] == {
        "forward_passes": 1, "tokens_computed": 2, "probe_forward_passes": 3, "probe_tokens_computed": 4,
    }  # fmt: skip


def test_the_animation_has_a_frame_for_every_moment(tmp_path):
    record = tmp_path / "race.json"
    record.write_text(json.dumps(TINY))
    race.draw_race(record)
    content = record.with_suffix(".gif").read_bytes()
    race.draw_race(record)
    assert record.with_suffix(".gif").read_bytes() == content
    picture = Image.open(record.with_suffix(".gif"))
    assert (picture.size, picture.info["loop"]) == (race.PIXELS, 0)
    times, images = [], []
    for frame in range(picture.n_frames):
        picture.seek(frame)
        times.append(picture.info["duration"])
        images.append(picture.convert("RGB").tobytes())
    assert sum(times) == sum(milliseconds for milliseconds, _ in race.moments(TINY))
    assert times[-1] == race.LAST_MS
    assert len(set(images)) == len(images)
    assert len(set(Image.frombytes("RGB", race.PIXELS, images[0]).convert("L").tobytes())) > 10


def test_the_kept_animation_is_of_the_kept_record():
    kept = race.read_record(race.RECORD)
    assert kept["prompt"] == race.example().prompt
    picture = Image.open(race.RECORD.with_suffix(".gif"))
    assert 0 <= len([*race.moments(kept)]) - picture.n_frames <= 3  # equal frames are merged
    assert race.RECORD.with_suffix(".gif").stat().st_size < 400_000
    predicted, fixed = (kept["runs"][name]["ledger"] for name in ("predicted", "fixed"))
    assert predicted["tokens_computed"] + predicted["probe_tokens_computed"] < fixed["tokens_computed"] / 4


@pytest.mark.full
def test_the_kept_record_is_measured_again():
    kept, fresh = race.read_record(race.RECORD), race.measure_race()
    assert kept["runs"].keys() == fresh["runs"].keys()
    for name, run in kept["runs"].items():
        for field in ("text", "horizon", "end", "ledger"):
            assert fresh["runs"][name][field] == run[field]
