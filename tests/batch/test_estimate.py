"""What is left is weighed by what was predicted of it, not counted."""

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


def test_seconds_follow_predicted_work_not_prompts(clock):
    """Nine short ones are done of ten, and most of the work is left."""
    rest = RemainingTime(10, {**dict.fromkeys(range(9), 10.0), 9: 910.0})
    clock[0] += 9
    for at in range(9):
        rest.finish(at, 10.0)
    assert rest.seconds_left == pytest.approx(9 / 90 * 910)


def test_those_that_were_not_probed_are_like_those_that_were(clock):
    rest = RemainingTime(100, {0: 10.0, 50: 30.0})
    assert rest.work_left == pytest.approx(100 * 20)
    assert rest.seconds_left is None  # nobody knows how fast it goes
    clock[0] += 4
    rest.finish(1, 40.0)  # its own probe said more
    assert rest.work_left == pytest.approx(100 * 20 - 40)
    assert rest.seconds_left == pytest.approx((2000 - 40) * 4 / 40)


def test_the_order_of_answers_does_not_matter_to_what_is_left(clock):
    lengths = [10.0] * 50 + [30.0] * 50
    for order in (range(100), range(99, -1, -1)):
        rest = RemainingTime(100, {at: lengths[at] for at in (0, 25, 50, 75)})
        for done, at in enumerate(order):
            if done == 50:
                assert rest.work_left == pytest.approx(sum(lengths[at] for at in order[50:]))
            rest.finish(at, float(lengths[at]))
        assert rest.seconds_left == 0.0


def test_without_a_probe_answers_tell(clock):
    rest = RemainingTime(4, {0: float("inf")})
    assert rest.work_left is None
    clock[0] += 2
    rest.finish(0, 10.0)
    assert rest.seconds_left == pytest.approx(3 * 2)
    rest.finish(1, 30.0)
    assert rest.work_left == pytest.approx(2 * 20)


def test_what_is_not_asked_is_less_to_do_and_nothing_done(clock):
    rest = RemainingTime(4, dict.fromkeys(range(4), 10.0))
    clock[0] += 2
    rest.skip(0)
    assert rest.seconds_left is None
    rest.finish(1, 10.0)
    assert rest.seconds_left == pytest.approx(2 * 2)


def test_promises_that_were_used_up_leave_something_to_do(clock):
    rest = RemainingTime(3, {0: 1.0})
    clock[0] += 1
    rest.finish(1, 500.0)
    assert rest.work_left >= 2


class Telling(EchoEngine):
    """An engine that predicts, too."""

    probed = 0

    def predict_lengths(self, requests, recipe, *, max_batch_size):
        self.probed += len(requests)
        yield {key: len(question.prompt_ids) for key, question in requests.items()}


def test_some_of_those_that_wait_are_probed_evenly(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.batch.run.MAX_PROBES", 4)
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "a" * n} for n in range(1, 41)])
    engine, states = Telling(toy), []
    run(engine, source, tmp_path / "a.jsonl", name="m", limit=20, rows=4, progress=states.append)
    assert engine.probed == 4
    assert [(s.done, s.total) for s in states][:3] == [(0, 20), (0, 20), (4, 20)]
    assert states[0].seconds_left is None
    assert states[3].seconds_left > 0
    assert (states[-1].done, states[-1].seconds_left) == (20, 0)
    run(engine, source, tmp_path / "a.jsonl", name="m", progress=states.append)
    assert engine.probed == 8
    assert states[-1].done == 40


def test_without_a_cache_a_pass_computes_the_prompt_as_well():
    assert estimated_work(Recipe(), 90, 10.0) == 10 * (90 + 10)
    assert estimated_work(Recipe(cache=DualCache()), 90, 10.0) == 10
