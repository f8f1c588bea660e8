"""The moving picture shows its record, and the record is what the model says today."""

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


def test_the_clock_is_the_same_for_both_and_who_is_done_waits():
    shown = [now for _, now in race.moments(TINY, step=1)]
    assert shown[0]["predicted"].texts == shown[0]["fixed"].texts == (None,) * 8
    assert [len(now["predicted"].texts) for now in shown[: race.SHRINKS]] == [8, 8, 7, 7, 6, 5, 5, 4]
    assert all(now["fixed"] == shown[0]["fixed"] for now in shown[: race.SHRINKS])
    passes = [(now["predicted"].forward_passes, now["fixed"].forward_passes) for now in shown[race.SHRINKS :]]
    assert passes == [(min(n, 2) + 1, n) for n in range(9)]  # the probe is a pass
    assert shown[-1]["predicted"].texts == ("a", "b", "")
    assert (shown[-1]["predicted"].tokens_computed, shown[-1]["fixed"].tokens_computed) == (26, 96)
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
    kept = race.read_record(race.RECORD)
    assert kept["prompt"] == race.example().prompt
    picture = Image.open(race.RECORD.with_suffix(".gif"))
    assert 0 <= len([*race.moments(kept)]) - picture.n_frames <= 3  # frames alike are one
    assert race.RECORD.with_suffix(".gif").stat().st_size < 400_000
    predicted, fixed = (kept["runs"][name]["ledger"] for name in ("predicted", "fixed"))
    assert predicted["tokens_computed"] + predicted["probe_tokens_computed"] < fixed["tokens_computed"] / 4


@pytest.mark.full
def test_the_record_is_what_the_model_says_today():
    kept, fresh = race.read_record(race.RECORD), race.measure_race()
    for name, run in kept["runs"].items():
        own = fresh["runs"][name]
        for said in ("text", "horizon", "end", "ledger"):
            assert own[said] == run[said]
