"""Length probes: results equal to those of the library, batches, their share of the time, and how they end."""

import asyncio
import math
from concurrent.futures import Future

import pytest
import torch

import lastword
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from lastword.serve.engine import DecodeWorker
from lastword.serve.metrics import EngineMetrics
from lastword.serve.probes import PROBE_SHARE, LengthProbe
from lastword.serve.request import ServerError
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings
from lastword.survival.interpretation import Auto, Hazard
from tests.serve.helpers import (
    MARK,
    TOY,
    Misbehaving,
    Poisoned,
    engine_of,
    outcome,
    prompt_ids_of,
    request_of,
    run,
    until,
)

TEXTS = ("abc", "m", "the cat", "lorem ipsum dolor sit amet", "q r s", "aa")
LONG = request_of("abc", Recipe().with_choices(length="fixed:64"))


def predict(engine, text, limit=32, interpretation=Auto()):
    return asyncio.ensure_future(engine.lengths(prompt_ids_of(text), limit, "document", interpretation))


@pytest.mark.parametrize("name", ["toy", "tiny-llada-base"])
def test_lengths_of_a_batch_equal_those_of_the_prompt_alone(name):
    """24 probes with three kinds of settings take a forward pass per kind, or a few more for the first to arrive."""
    model = Misbehaving(pause=0.02) if name == "toy" else lastword.load(name, device="cpu")
    settings = [(32, Auto()), (17, Auto()), (32, Hazard())]
    cases = [(text, *settings[at % 3]) for at, text in enumerate(TEXTS * 4)]
    prompts = [list(prompt_ids_of(text)) for text, *_ in cases]

    async def decode():
        async with engine_of(model) as engine:
            return await asyncio.gather(*(predict(engine, *case) for case in cases))

    for prompt, (_, limit, interpretation), lengths in zip(prompts, cases, run(decode()), strict=True):
        expected = lastword.predict_length(model, prompt, limit=limit, interpretation=interpretation)
        torch.testing.assert_close(lengths.hazard, expected.hazard, rtol=1e-4, atol=1e-7)
        assert lengths.explanation == expected.explanation
    if name == "toy":
        assert model.calls - len(cases) <= 1 + 6  # the warm-up; at most two batches per kind


def test_answers_and_length_probes_share_the_time():
    """Twelve clients that repeat length probes get a quarter of the time of an answer, no more and not much less."""
    model = Misbehaving(pause=0.005)

    async def decode():
        async with engine_of(model, max_batch_size=16) as engine:
            await until(lambda: engine.state == "ready")
            probes, is_answered = [0], asyncio.Event()

            async def loop(text):
                while not is_answered.is_set():
                    await predict(engine, text)
                    probes[0] += 1

            clients = [asyncio.ensure_future(loop(TEXTS[at % 6])) for at in range(12)]
            await until(lambda: probes[0] > 24)
            calls, before = model.calls, probes[0]
            text = await outcome(engine.submit([LONG]))
            calls, during = model.calls - calls, probes[0] - before
            is_answered.set()
            await asyncio.gather(*clients)
            return text, calls, during

    text, calls, during = run(decode())
    assert len(text) == 64
    probe_calls, share = calls - 64, PROBE_SHARE / (1 - PROBE_SHARE)
    assert 0.5 * 64 * share <= probe_calls <= 64 * share + 4
    assert during >= 5 * probe_calls  # probes of several clients share a forward pass


def probe_of(text, limit=8, timeout=math.inf):
    return LengthProbe(torch.tensor(prompt_ids_of(text)), Survival(limit=limit), timeout, Future())


@pytest.fixture
def worker():
    return DecodeWorker(TOY, ServerSettings(max_batch_size=4, max_queue_size=4), Scheduler(), EngineMetrics())


def test_unfinished_probes_are_part_of_the_load(worker):
    worker.add(probe_of("abc"))
    worker.run_pass()  # the time of a probe is measured
    idle = worker.load()
    assert (idle.waiting, idle.seconds, idle.tokens, worker.num_unfinished) == (0, 0.0, 0.0, 0)
    for text in ("abc", "m"):
        worker.add(probe_of(text))
    load = worker.load()
    assert (load.running, load.waiting, worker.num_unfinished) == (0, 2, 2)
    assert load.seconds > 0
    assert load.tokens == (3 + 8) + (1 + 8)
    worker.run_pass()
    assert worker.load() == idle


def test_a_cancelled_probe_is_dropped_before_its_turn(worker):
    cancelled = probe_of("abc", limit=9)
    worker.add(probe_of("abc"))
    worker.add(cancelled)
    cancelled.result.cancel()
    worker.run_pass()  # runs the first probe only
    assert worker.num_unfinished == 0


def test_a_probe_that_runs_when_the_engine_fails_ends_with_an_error(worker):
    running, waiting = probe_of("abc"), probe_of("abc")
    running.result.set_running_or_notify_cancel()
    for probe in (running, waiting):
        worker.add(probe)
    worker.refuse_all()
    assert [probe.result.exception().code for probe in (running, waiting)] == ["draining"] * 2


def test_probes_count_towards_the_limit_of_the_queue():
    model = Misbehaving(pause=0.1)

    async def decode():
        async with engine_of(model, max_batch_size=1, max_queue_size=2) as engine:
            probes = [predict(engine, "abc", limit) for limit in (8, 9, 10)]
            await asyncio.sleep(0)
            with pytest.raises(ServerError, match=r"3 requests are unfinished") as refused:
                engine.submit([LONG])
            assert (refused.value.code, refused.value.kind.retry_after) == ("overloaded", 1)
            with pytest.raises(ServerError, match=r"3 requests are unfinished"):
                await predict(engine, "abc")
            return [lengths.slots for lengths in await asyncio.gather(*probes)]

    assert run(decode()) == [8, 9, 10]


def test_a_probe_that_waits_too_long_expires():
    async def decode():
        async with engine_of(Misbehaving(pause=0.3), timeout=0.2) as engine:
            await until(lambda: engine.state == "ready")
            first, second = predict(engine, "abc", 8), predict(engine, "abc", 9)
            with pytest.raises(ServerError, match="before the timeout") as expired:
                await second
            assert expired.value.code == "deadline_exceeded"
            await until(lambda: engine.num_unfinished == 0)
            return await first

    assert run(decode()).slots == 8


def test_a_probe_that_fails_does_not_fail_others():
    async def decode():
        async with engine_of(Poisoned(pause=0.02)) as engine:
            probes = [predict(engine, text) for text in (*TEXTS, MARK + "bc")]
            return await asyncio.gather(*probes, return_exceptions=True)

    *lengths, failed = run(decode())
    assert isinstance(failed, Exception)
    for text, result in zip(TEXTS, lengths, strict=True):
        assert float(result.mean) == pytest.approx(float(lastword.predict_length(TOY, text, limit=32).mean))


def test_probes_that_are_unfinished_when_the_server_stops_are_refused():
    async def decode():
        async with engine_of(Misbehaving(pause=0.1)) as engine:
            await until(lambda: engine.state == "ready")
            probes = [predict(engine, "abc", limit) for limit in range(1, 11)]
            await asyncio.sleep(0.15)
            engine.drain(0.0)
            return await asyncio.gather(*probes, return_exceptions=True)

    results = run(decode())
    assert results[0].slots == 1
    assert [error.code for error in results[5:]] == ["draining"] * 5
