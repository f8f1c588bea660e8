"""How many replicas there should be, as a function of predicted seconds."""

from types import SimpleNamespace

import pytest

from lastword.serve.settings import LOAD_METRIC, AutoscalingPolicy, desired_replicas


@pytest.mark.parametrize(
    ("seconds", "now", "number"),
    [
        (0.0, 1, 1),
        (10.0, 1, 1),  # as much as one should have
        (10.1, 1, 2),
        (45.0, 2, 5),
        (1e6, 2, 8),  # the most there may be
        (12.0, 4, 3),  # four would have 3 each; two could do it and would be near their limit
        (19.0, 4, 4),
        (0.0, 4, 1),  # the least
    ],
)
def test_so_many_for_so_much_work(seconds, now, number):
    assert desired_replicas(seconds, 10.0, now, 1, 8) == number


def test_never_fewer_than_the_least_nor_more_than_the_most():
    assert desired_replicas(0.0, 1.0, 3, 2, 8) == 2
    assert desired_replicas(99.0, 1.0, 3, 2, 8) == 8


def test_a_number_that_was_reached_is_kept():
    """Work that one number is right for does not send it up and down."""
    for tenths in range(1, 900):
        now = 1
        seen = [now := desired_replicas(tenths / 10, 10.0, now, 1, 8) for _ in range(4)]
        assert len({*seen[1:]}) == 1


def test_the_policy_adds_up_what_replicas_report():
    policy = AutoscalingPolicy(seconds=5.0)
    context = SimpleNamespace(
        aggregated_metrics={LOAD_METRIC: {"a": 12.0, "b": 7.0}},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=10,
        target_num_replicas=2,
    )
    assert policy(context) == (4, {})
    context.aggregated_metrics = None  # nobody has reported yet
    context.target_num_replicas = 1
    assert policy(context) == (1, {})
