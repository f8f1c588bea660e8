"""Tests of the simulated router: latencies by hand, and the gain from predicted work."""

import pytest

from benchmarks.serving.routed import Server, Work, p95


def test_active_rows_share_a_replica_and_other_requests_wait():
    server, latencies = Server(slots=2, speed=10.0), []
    for tokens in (10.0, 20.0, 5.0):
        server.take(Work(tokens, tokens), 0.0)
    server.forward(1.9, 1.9, latencies)
    server.update_report()
    assert latencies == []
    assert server.report.requests == 3
    assert server.report.tokens == pytest.approx(35.0 - 19.0, abs=0.6)  # at least 1 token is left in each request
    server.forward(2.0, 3.9, latencies)
    # The first request ends at 2. The second has 10 tokens left and shares the replica with the third, which ends at 3.
    assert latencies == pytest.approx([2.0, 3.0, 3.5])
    assert server.num_requests == 0


def test_predicted_work_reduces_latency_and_wrong_predictions_reduce_it_less():
    correct = [Work(tokens, tokens) for tokens in (1_000.0, 1_500.0, 2_000.0, 10_000.0, 25_000.0)]
    wrong = [Work(30_000.0 - work.measured, work.measured) for work in correct]
    latency = p95(correct, "predicted", requests=4_000)
    assert latency < 0.75 * p95(correct, "random", requests=4_000)
    assert latency < 0.9 * p95(wrong, "predicted", requests=4_000)


def test_routing_to_a_single_replica_does_not_depend_on_the_rule():
    work = [Work(1_000.0, 1_000.0), Work(9_000.0, 9_000.0)]
    predicted, random = (p95(work, rule, replicas=1, requests=1_000) for rule in ("predicted", "random"))
    assert predicted == random > 9_000.0 / 4_400.0
