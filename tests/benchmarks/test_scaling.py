"""Tests of the benchmark of worker processes: its prompts, its table, and a small run."""

import json

import pytest

from benchmarks import scaling
from lastword.errors import SettingError
from lastword.models.load import load


def test_prompts_are_of_every_family_and_limited_to_the_frozen_ones():
    requests = scaling.requests_of(load("tiny-llada-base", device="cpu"), 10)
    assert len({len(request.prompt_ids) for request in requests.values()}) > 5
    assert [request.seed for request in requests.values()] == [*range(10)]
    with pytest.raises(SettingError, match="are frozen"):
        scaling.requests_of(load("tiny-llada-base", device="cpu"), 10**6)


@pytest.mark.parametrize("batch_size", ["batch_size", "rows"])
def test_workers_that_share_a_core_have_an_efficiency_by_cpu_seconds_only(batch_size):
    """Records of earlier versions have `rows`."""
    one = {"workers": 1, "order": "predicted", "seconds": 90.0, "cpu_most": 80.0, "cpu_all": 80.0, "idle": 0.0}
    four = {"workers": 4, "order": "round robin", "seconds": 50.0, "cpu_most": 25.0, "cpu_all": 84.0, "idle": 0.125}
    record = {
        "model": "m", "recipe": "r", "prompts": 1000, batch_size: 8, "threads": 1, "cores": 2,
        "hardware": "h, 2 threads",
        "measured": [one | {"efficiency": 1.0, "own_core": 1.0}, four | {"efficiency": None, "own_core": 0.8}],
    }  # fmt: skip
    head, *_, first, second = scaling.table(record).splitlines()
    assert head == "m, recipe `r`: 1,000 prompts, batches of 8, 1 thread per worker, 2 cores (h)."
    assert first == "| 1 | predicted | 90.0 | 100% | 80.0 | 80.0 | 100% | 0.0% |"
    assert second == "| 4 | round robin | 50.0 |  | 25.0 | 84.0 | 80% | 12.5% |"


@pytest.mark.full
def test_the_answers_of_two_workers_equal_those_of_one():
    record = scaling.run("tiny-llada-base", [1, 2], 12, "fast")
    rows = record["measured"]
    assert [(row["workers"], row["order"]) for row in rows] == [
        (1, "predicted"), (2, "predicted"), (2, "round robin"),
    ]  # fmt: skip
    assert len({(row["tokens"], row["passes"]) for row in rows}) == 1
    assert all(0 <= row["idle"] < 1 for row in rows)
    assert len(json.dumps(record)) < 20_000
