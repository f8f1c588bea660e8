"""An archive gives back what tables need, in few bytes, and the same bytes every time."""

import json
import random
from pathlib import Path

import pytest

from lastword.errors import SettingError
from lastword.eval.archive import LEFT_OUT, keep, pack
from lastword.eval.journal import read_records
from lastword.paper.pairing import answers

COST = {"passes": 2, "columns": 20, "squares": 400}


def record(place, *, slots=8, task="algebra", kind="answer", **more):
    return {
        "kind": kind, "model": "m", "weights": "w", "recipe": {"length": {"name": "fixed", "slots": slots}},
        "seed": 0, "task": task, "split": "test", "place": place, "prompt": f"{place:016x}",
        "hardware": "h", "versions": {"lastword": "1"}, "rows": 4, "batch_seconds": 0.5,
        "horizon": slots, "cost": {**COST, "columns": 20 + place}, "probe_cost": COST,
        "finish": "ended", "length": place % 3, "text": f"answer {place}", "seconds": 0.1 * place,
        "score": float(place % 2), **more,
    }  # fmt: skip


def kept(one):
    return {name: value for name, value in one.items() if name not in LEFT_OUT}


def test_records_come_back_without_texts(tmp_path):
    records = [record(p, slots=s, task=t) for s in (8, 16) for t in ("a", "b") for p in range(5)]
    records += [record(p, kind="drift", expected={"0": 1.5, "2": p}) for p in range(3)]
    keep(records, tmp_path / "m.jsonl.gz")
    found = read_records(tmp_path)
    for one in found:
        assert len(one.pop("prompts")) == 16
    order = sorted(map(json.dumps, (dict(sorted(kept(r).items())) for r in records)))
    assert sorted(json.dumps(dict(sorted(one.items()))) for one in found) == order


def test_the_same_records_make_the_same_bytes_in_any_order():
    records = [record(p, slots=s) for s in (8, 16) for p in range(20)]
    mixed = random.Random(1).sample(records, len(records))
    assert pack(mixed) == pack(records)
    assert pack([record(0)]) != pack([record(0, score=0.5)])


def test_an_archive_is_small():
    records = [record(p) for p in range(500)]
    plain = sum(len(json.dumps(kept(r))) for r in records)
    assert len(pack(records)) < plain / 50


def test_packing_what_was_unpacked_changes_nothing(tmp_path):
    keep([record(p) for p in range(7)], tmp_path / "a.jsonl.gz")
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    once = read_records(tmp_path)
    keep(once, tmp_path / "a.jsonl.gz")
    assert read_records(tmp_path) == once
    assert (tmp_path / "a.jsonl.gz").read_bytes() == packed
    assert len({r["prompts"] for r in once} - {""}) == 1


def test_older_records_without_a_field_go_beside_newer_ones(tmp_path):
    older = [record(p) for p in range(3)]
    newer = [record(p, layout="chat", sandbox={"level": "plain"}) for p in range(3, 6)]
    for mixed in ([*older, *newer], [*newer, *older]):
        keep(mixed, tmp_path / "a.jsonl.gz")
        found = {r["place"]: r for r in read_records(tmp_path)}
        assert [found[p].get("layout") for p in range(6)] == [None] * 3 + ["chat"] * 3
        assert found[5]["sandbox"] == {"level": "plain"}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ({"model": "m", "columns": {"place": [0]}}, "recipe"),
        ({"shared": {"model": "m"}, "columns": {"place": [0]}}, "recipe"),
        ({"step": 1, "validation_loss": 2.0}, "model"),
        ({name: 0 for name in record(0) if name != "cost"}, "cost"),
        ({**record(0), "kind": "drift"}, "expected"),
    ],
)
def test_lines_that_are_no_records_are_refused_with_their_file(tmp_path, line, missing):
    (tmp_path / "other.jsonl").write_text(json.dumps(record(0)) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(SettingError, match=rf"other\.jsonl cannot be read.*no '{missing}'"):
        read_records(tmp_path)
    (tmp_path / "other.jsonl").write_text("[1]\n")
    with pytest.raises(SettingError, match=r"other\.jsonl cannot be read.*no object"):
        read_records(tmp_path)


def test_the_records_of_the_repository_are_records():
    kept = Path(__file__).parent.parent.parent / "benchmarks" / "records"
    assert all(len(read_records(path)) > 100 for path in (kept / "study").iterdir())
    with pytest.raises(SettingError, match=r"records/coverage/tiny-dream-base.*has no 'recipe'"):
        read_records(kept / "coverage")


def test_a_validation_prompt_does_not_stand_in_for_a_test_prompt(tmp_path):
    """An archive has no prompts, so place alone would take one for the other."""
    both = [
        one | {"split": split} for split in ("validation", "test") for one in map(record, range(3))
    ]
    keep(both, tmp_path / "both.jsonl.gz")
    read = read_records(tmp_path / "both.jsonl.gz")
    for split in ("validation", "test"):
        assert len(answers(read, split)) == 3
