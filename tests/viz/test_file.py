"""A run as one file: whole, self-contained, and safe whatever its texts hold."""

import json
import re
from dataclasses import replace

import pytest

import lastword
from lastword.errors import SettingError
from lastword.viz.replay import START, changes, replay

ODD = "</script><script>alert(1)</script><!-- \" ' & \0 \u202e \u2028 \ud83d"


@pytest.fixture(scope="module")
def answer():
    return lastword.generate(lastword.load("toy"), "abc", length="survival:20", frames=True)


def data(page):
    found = re.findall(r'<script type="application/json" id="runs">(.*?)</script>', page, re.S)
    assert len(found) == 1
    return json.loads(found[0])


def test_a_run_is_written_whole(answer, tmp_path):
    path = answer.replay(tmp_path / "run.html")
    page = path.read_text()
    (run,) = data(page)["runs"]
    assert page.startswith(START)
    assert (run["prompt"], run["text"]) == ("abc", answer.text)
    assert run["ledger"]["forward_passes"] == answer.cost.forward_passes
    assert run["ledger"]["tokens"] == len(answer.tokens)
    assert run["lengths"]["mean"] == pytest.approx(answer.lengths.mean.item(), abs=1e-3)
    assert len(run["lengths"]["survival"]) == 21
    assert len(run["frames"]) == len(answer.frames)


def test_a_file_asks_nobody_for_anything(answer, tmp_path):
    page = answer.replay(tmp_path / "run.html").read_text()
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[^\"' )]*", page) == ["http://www.w3.org/2000/svg"]
    assert "innerHTML" not in page
    assert "{{" not in page
    assert "/*player" not in page


def test_what_changed_is_enough(answer):
    slots = []
    for frame, change in zip(answer.frames, changes(answer.frames)):
        slots = slots[: change["slots"]]
        for at, *slot in change["set"]:
            slots[at : at + 1] = [slot]
        assert [slot[0] for slot in slots] == [
            None if token is None else text for token, text in zip(frame.tokens, frame.texts)
        ]
        assert [slot[1] for slot in slots] == list(frame.filled_at)


def test_text_cannot_leave_its_place(answer):
    frames = [replace(frame, texts=(ODD,) * len(frame.texts)) for frame in answer.frames]
    page = replay({"prompt": ODD, "frames": [*changes(frames)]})
    plain = replay({"prompt": "", "frames": []})
    assert page.count("<script") == plain.count("<script")
    assert "\0" not in page
    assert data(page)["runs"][0]["prompt"] == ODD


def test_frames_are_needed(toy, tmp_path):
    with pytest.raises(SettingError, match=r"generate\(..., frames=True\)"):
        lastword.generate(toy, "abc", length="fixed:3").replay(tmp_path / "run.html")


def test_only_a_replay_is_replaced(answer, tmp_path):
    path = tmp_path / "run.html"
    assert answer.replay(path) == answer.replay(str(path)) == path
    path.write_text("my thesis")
    with pytest.raises(SettingError, match="is not a replay"):
        answer.replay(path)
    assert path.read_text() == "my thesis"
    path.write_text("")
    answer.replay(path)


def test_a_folder_and_a_number_are_no_file(answer, tmp_path, in_plain_python):
    with pytest.raises(SettingError, match="is a folder"):
        answer.replay(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot be written"):
        answer.replay(tmp_path / "file" / "run.html")
    code = "lastword.generate(toy, 'a', length='fixed:2', frames=True).replay(3)"
    assert in_plain_python([code]) == {code: "SettingError"}
