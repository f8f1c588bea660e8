"""The scaling benchmark runs, and its record says what it should."""

import json

import pytest

from benchmarks import scaling
from lastword.errors import SettingError
from lastword.models.load import load


def test_prompts_are_of_every_family_and_no_more_than_there_are():
    requests = scaling.requests_of(load("tiny-llada-base", device="cpu"), 10)
    assert len({len(request.prompt_ids) for request in requests.values()}) > 5
    assert [request.seed for request in requests.values()] == [*range(10)]
    with pytest.raises(SettingError, match="are frozen"):
        scaling.requests_of(load("tiny-llada-base", device="cpu"), 10**6)


def test_workers_that_share_a_core_have_no_efficiency_but_by_their_cpu():
    one = {"workers": 1, "order": "predicted", "seconds": 90.0, "cpu_most": 80.0, "cpu_all": 80.0}
    many = {"workers": 4, "order": "round robin", "seconds": 50.0, "cpu_most": 25.0, "cpu_all": 84.0}
    whole, shared = {"efficiency": 1.0, "own_core": 1.0}, {"efficiency": None, "own_core": 0.8}
    record = {
        "model": "m", "recipe": "r", "prompts": 1000, "rows": 8, "threads": 1, "cores": 2, "hardware": "h",
        "measured": [one | whole | {"idle": 0.0}, many | shared | {"idle": 0.125}],
    }  # fmt: skip
    *_, first, second = scaling.table(record).splitlines()
    assert first == "| 1 | predicted | 90.0 | 1.00 | 100% | 80.0 | 80.0 | 100% | 0.0% |"
    assert second == "| 4 | round robin | 50.0 |  |  | 25.0 | 84.0 | 80% | 12.5% |"


@pytest.mark.full
def test_two_workers_give_what_one_gives():
    found = scaling.run("tiny-llada-base", [1, 2], 12, "fast")
    rows = found["measured"]
    assert [(row["workers"], row["order"]) for row in rows] == [
        (1, "predicted"), (2, "predicted"), (2, "round robin"),
    ]  # fmt: skip
    assert len({(row["tokens"], row["passes"]) for row in rows}) == 1
    assert all(0 <= row["idle"] < 1 for row in rows)
    assert len(json.dumps(found)) < 20_000
