"""The remaining time depends on the predicted work, not on the number of prompts."""

import pytest

from lastword import DualCache, Recipe
from lastword.batch import progress
from lastword.batch.progress import RemainingTime, estimated_work
from tests.batch.batches import EchoEngine, run, write_lines


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_the_remaining_seconds_follow_the_predicted_work(clock):
    """Nine short requests of ten are finished, and most of the work remains."""
    rest = RemainingTime(10, {**dict.fromkeys(range(9), 10.0), 9: 910.0})
    clock[0] += 9
    for at in range(9):
        rest.finish(at, 10.0)
    assert rest.seconds_left == pytest.approx(9 / 90 * 910)


def test_requests_without_a_probe_are_like_those_with_one(clock):
    rest = RemainingTime(100, {0: 10.0, 50: 30.0})
    assert rest.work_left == pytest.approx(100 * 20)
    assert rest.seconds_left is None  # nobody knows how fast it goes
    clock[0] += 4
    rest.finish(1, 40.0)  # its own probe said more
    assert rest.work_left == pytest.approx(100 * 20 - 40)
    assert rest.seconds_left == pytest.approx((2000 - 40) * 4 / 40)


def test_the_order_of_answers_does_not_change_the_estimate(clock):
    lengths = [10.0] * 50 + [30.0] * 50
    for order in (range(100), range(99, -1, -1)):
        rest = RemainingTime(100, {at: lengths[at] for at in (0, 25, 50, 75)})
        for done, at in enumerate(order):
            if done == 50:
                assert rest.work_left == pytest.approx(sum(lengths[at] for at in order[50:]))
            rest.finish(at, float(lengths[at]))
        assert rest.seconds_left == 0.0


def test_without_probes_the_replies_report_predictions(clock):
    rest = RemainingTime(4, {0: float("inf")})
    assert rest.work_left is None
    clock[0] += 2
    rest.finish(0, 10.0)
    assert rest.seconds_left == pytest.approx(3 * 2)
    rest.finish(1, 30.0)
    assert rest.work_left == pytest.approx(2 * 20)


def test_a_skipped_request_is_not_finished_work(clock):
    rest = RemainingTime(4, dict.fromkeys(range(4), 10.0))
    clock[0] += 2
    rest.skip(0)
    assert rest.seconds_left is None
    rest.finish(1, 10.0)
    assert rest.seconds_left == pytest.approx(2 * 2)


def test_unanswered_requests_always_have_work(clock):
    rest = RemainingTime(3, {0: 1.0})
    clock[0] += 1
    rest.finish(1, 500.0)
    assert rest.work_left >= 2


class PredictingEngine(EchoEngine):
    """An engine that predicts lengths."""

    probed = 0

    def predict_lengths(self, requests, recipe, *, max_batch_size):
        self.probed += len(requests)
        yield {key: len(question.prompt_ids) for key, question in requests.items()}


def test_prompts_spread_over_the_file_are_probed(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.batch.run.MAX_PROBES", 4)
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "a" * n} for n in range(1, 41)])
    engine, states = PredictingEngine(toy), []
    run(engine, source, tmp_path / "a.jsonl", name="m", limit=20, max_batch_size=4, progress=states.append)
    assert engine.probed == 4
    assert [(s.done, s.total) for s in states][:3] == [(0, 20), (4, 20), (8, 20)]
    assert states[0].seconds_left is None
    assert states[2].seconds_left > 0
    assert (states[-1].done, states[-1].seconds_left) == (20, 0)
    run(engine, source, tmp_path / "a.jsonl", name="m", progress=states.append)
    assert engine.probed == 8
    assert states[-1].done == 40


def test_without_a_cache_each_pass_computes_the_prompt():
    assert estimated_work(Recipe(), 90, 10.0) == 10 * (90 + 10)
    assert estimated_work(Recipe(cache=DualCache()), 90, 10.0) == 10
