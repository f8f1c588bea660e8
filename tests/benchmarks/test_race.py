"""The moving picture shows its record, and the record is what the model says today."""

import json

import pytest
from PIL import Image

from benchmarks import race

LEDGER = {"probe_passes": 1, "probe_columns": 12, "passes": 2, "columns": 9}
SHORT = {
    "text": "ab", "horizon": 3, "end": 3, "ledger": LEDGER,
    "lengths": {"survival": [1.0, 1.0, 0.5, 0.1] + [0.0] * 5},
    "frames": [
        {"passes": 0, "columns": 0, "slots": 3, "set": []},
        {"passes": 1, "columns": 7, "slots": 3, "set": [[0, "a"], [2, ""]]},
        {"passes": 2, "columns": 14, "slots": 3, "set": [[1, "b"]]},
    ],
}  # fmt: skip
LONG = {
    "text": "ab", "horizon": 8, "end": 3, "lengths": None,
    "ledger": {**LEDGER, "probe_passes": 0, "probe_columns": 0},
    "frames": [
        {"passes": n, "columns": 12 * n, "slots": 8, "set": [[8 - n, "xba"[n - 6] if n > 5 else ""]][: n]}
        for n in range(9)
    ],
}  # fmt: skip
TINY = {"model": "m", "prompt": "What?", "slots": 8, "runs": {"predicted": SHORT, "fixed": LONG}}


def test_the_clock_is_the_same_for_both_and_who_is_done_waits():
    shown = [now for _, now in race.moments(TINY, step=1)]
    assert shown[0]["predicted"].texts == shown[0]["fixed"].texts == (None,) * 8
    assert [len(now["predicted"].texts) for now in shown[: race.SHRINKS]] == [
        8,
        8,
        7,
        7,
        6,
        5,
        5,
        4,
    ]
    assert all(now["fixed"] == shown[0]["fixed"] for now in shown[: race.SHRINKS])
    passes = [(now["predicted"].passes, now["fixed"].passes) for now in shown[race.SHRINKS :]]
    assert passes == [(min(n, 2) + 1, n) for n in range(9)]  # the probe is a pass
    assert shown[-1]["predicted"].texts == ("a", "b", "")
    assert (shown[-1]["predicted"].columns, shown[-1]["fixed"].columns) == (26, 96)
    assert [now["predicted"].done for now in shown[race.SHRINKS :]] == [False] * 2 + [True] * 7


def test_an_answer_shows_its_masks():
    lane = race.Lane(SHORT, 8)
    assert [lane.shown(lane.at(passes)) for passes in (0, 1, 2)] == ["···", "a·", "ab"]


def test_the_picture_has_a_frame_for_every_moment(tmp_path):
    record = tmp_path / "race.json"
    record.write_text(json.dumps(TINY))
    race.draw_race(record)
    drawn = record.with_suffix(".gif").read_bytes()
    race.draw_race(record)
    assert record.with_suffix(".gif").read_bytes() == drawn
    picture = Image.open(record.with_suffix(".gif"))
    assert (picture.size, picture.info["loop"]) == (race.PIXELS, 0)
    times, looks = [], []
    for frame in range(picture.n_frames):
        picture.seek(frame)
        times.append(picture.info["duration"])
        looks.append(picture.convert("RGB").tobytes())
    assert sum(times) == sum(shown for shown, _ in race.moments(TINY))
    assert times[-1] == race.LAST_MS
    assert len(set(looks)) == len(looks)
    assert len(set(Image.frombytes("RGB", race.PIXELS, looks[0]).convert("L").tobytes())) > 10


def test_the_kept_picture_is_of_the_kept_record():
    kept = json.loads(race.RECORD.read_text())
    assert kept["prompt"] == race.example().prompt
    picture = Image.open(race.RECORD.with_suffix(".gif"))
    assert 0 <= len([*race.moments(kept)]) - picture.n_frames <= 3  # frames alike are one
    assert race.RECORD.with_suffix(".gif").stat().st_size < 400_000
    predicted, fixed = (kept["runs"][name]["ledger"] for name in ("predicted", "fixed"))
    assert predicted["columns"] + predicted["probe_columns"] < fixed["columns"] / 4


@pytest.mark.full
def test_the_record_is_what_the_model_says_today():
    kept, fresh = json.loads(race.RECORD.read_text()), race.measure_race()
    for name, run in kept["runs"].items():
        own = fresh["runs"][name]
        for said in ("text", "horizon", "end", "ledger"):
            assert own[said] == run[said]
