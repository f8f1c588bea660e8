"""The router's rule in simulated time: what it must and must not be worth."""

import pytest

from benchmarks.serving.routed import Server, Work, p95


def test_rows_share_a_replica_and_others_wait():
    server, over = Server(slots=2, speed=10.0), []
    for took in (10.0, 20.0, 5.0):
        server.take(Work(took, took), 0.0)
    server.forward(1.9, 1.9, over)
    server.say()
    assert over == []
    assert server.report.requests == 3
    assert server.report.tokens == pytest.approx(35.0 - 19.0, abs=0.6)  # each has 1 left at least
    server.forward(2.0, 3.9, over)
    # The first is over at 2; the second has 10 left and shares with the third, until that is over at 3.
    assert over == pytest.approx([2.0, 3.0, 3.5])
    assert server.in_hand == 0


def test_less_predicted_work_is_worth_more_than_chance_and_wrong_predictions_are_worth_less():
    natural = [Work(own, own) for own in (1_000.0, 1_500.0, 2_000.0, 10_000.0, 25_000.0)]
    backwards = [Work(30_000.0 - own.took, own.took) for own in natural]
    right = p95(natural, "predicted", requests=4_000)
    assert right < 0.75 * p95(natural, "random", requests=4_000)
    assert right < 0.9 * p95(backwards, "predicted", requests=4_000)


def test_one_replica_leaves_nothing_to_choose():
    found = [Work(1_000.0, 1_000.0), Work(9_000.0, 9_000.0)]
    both = [p95(found, how, replicas=1, requests=1_000) for how in ("predicted", "random")]
    assert both[0] == both[1] > 9_000.0 / 4_400.0
