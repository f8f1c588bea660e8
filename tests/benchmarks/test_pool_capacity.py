"""Tests of the simulation of a pool: it drives the real pool, and the kept record meets its goals."""

import json

import pytest

from benchmarks import pool_capacity
from lastword.engines import pool


@pytest.mark.parametrize("cost", pool_capacity.COSTS)
def test_a_small_pool_uses_its_capacity(cost):
    assert 0.75 < pool_capacity.capacity_used(4, cost, 1200) <= 1


def test_smaller_tasks_waste_passes(monkeypatch):
    usual = pool_capacity.capacity_used(4, "forward passes", 1200)
    monkeypatch.setattr(pool, "QUEUE_FACTOR", 1)
    assert pool_capacity.capacity_used(4, "forward passes", 1200) < usual - 0.1


def test_the_kept_record_meets_the_goals():
    lines = {line["workers"]: line for line in json.loads(pool_capacity.FILE.read_text())["lines"]}
    assert sorted(lines) == [*pool_capacity.WORKERS]
    for workers, goal in ((2, 0.9), (16, 0.9), (64, 0.9), (256, 0.8)):
        assert min(lines[workers][cost] for cost in pool_capacity.COSTS) > goal
