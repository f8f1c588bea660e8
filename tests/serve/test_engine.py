"""The engine without HTTP: each answer equals its solo run, whatever happens to other requests."""

import asyncio
import gc
import math
import weakref
from dataclasses import dataclass, replace

import pytest

import lastword
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.models.toy import Letters
from lastword.policies.length.policy import Plan
from lastword.policies.unmask.rule import MostConfident, UnmaskRule
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.request import RequestFinished, ServerError, ServerRequest
from lastword.serve.scheduler import Scheduler
from lastword.survival.interpretation import Auto
from lastword.viz.frames import Frame
from tests.serve.helpers import (
    MARK,
    TOY,
    Misbehaving,
    Narrow,
    Poisoned,
    Stumbling,
    alone,
    engine_of,
    frames_of,
    outcome,
    outcomes,
    prompt_ids_of,
    read,
    request_of,
    run,
    until,
)

CAREFUL, FAST, PAPER = (Recipe.named(name) for name in ("careful", "fast", "paper"))
SAMPLED = replace(CAREFUL, sampling=Sampling(temperature=0.7))
FULL = replace(CAREFUL, length=lastword.Fixed(8))  # always eight passes
RECIPES = (CAREFUL, FAST, PAPER, SAMPLED, FULL)
WORDS = ("abc", "m", "the cat", "xyz", "lorem ipsum dolor", "q r s t u v w", "aa", "zebra")
ABC = request_of("abc", FULL)
MARKED = request_of(MARK + "bc", FULL)


def mixed(count):
    """Return requests that differ in prompt, recipe, seed, cap and stop strings."""
    return [
        request_of(
            WORDS[at % len(WORDS)],
            RECIPES[at % len(RECIPES)],
            seed=at,
            max_new_tokens=(None, 5, None, 3)[at % 4],
            stop=((), ("k",), ("uv", "fg"))[at % 3],
        )
        for at in range(count)
    ]


def solo(requests):
    return [alone(TOY, request) for request in requests]


def decoded(model, requests, **settings):
    """Return the outcomes of requests in one engine, and the engine."""

    async def decode():
        async with engine_of(model, **settings) as engine:
            return await outcomes(engine, requests), engine

    return run(decode())


@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_mixed_requests_equal_their_solo_runs(max_batch_size):
    requests = mixed(5 * max_batch_size + 5)
    assert decoded(Misbehaving(), requests, max_batch_size=max_batch_size)[0] == solo(requests)


def test_answers_of_a_network_equal_their_solo_runs():
    model = lastword.load("tiny-llada-base", device="cpu")
    texts = ["Tom has 3 apples and buys 4.", "def add(a, b):", "Solve x + 3 = 5.", "1"]
    recipes = [recipe.with_choices(length="default:24") for recipe in (FAST, SAMPLED, CAREFUL, PAPER)]
    requests = []
    for at, (text, recipe) in enumerate(zip(texts, recipes)):
        ids = tuple(model.tokenizer.encode(text))
        stop = (".",) if at % 2 else ()
        requests.append(ServerRequest(ids, resolve(recipe, model, [ids]), at, max_new_tokens=16, stop=stop))
    expected = [alone(model, request) for request in requests]
    assert decoded(model, requests, max_batch_size=3)[0] == expected


def test_an_answer_has_its_own_prompt_cost_and_end():
    model, requests = Misbehaving(), mixed(12)

    async def decode():
        async with engine_of(model, max_batch_size=4) as engine:
            return await engine.submit(requests).answers()

    for request, answer in zip(requests, run(decode())):
        expected = lastword.generate(TOY, list(request.prompt_ids), recipe=request.recipe, seed=request.seed)
        assert tuple(answer.generation.prompt) == request.prompt_ids
        generation = answer.generation
        assert generation.stop_reason is None or generation.stop_reason in request.stop
        assert len(generation.tokens) == len(generation.text)  # one letter per token
        if request.max_new_tokens is None and generation.stop_reason is None:
            assert generation.canvas == expected.canvas
            assert generation.cost == expected.cost
            assert generation.finish is expected.finish


def test_a_prompt_with_several_answers_is_counted_once():
    request = request_of("abc", Recipe().with_choices(length="fixed:2"))

    async def decode():
        async with engine_of(TOY) as engine:
            await engine.submit([request, replace(request, seed=1)]).answers()
            return engine.metrics.text().decode()

    assert "lastword:prompt_tokens_total 3.0" in run(decode())


def test_a_cancelled_request_frees_its_row_between_two_passes():
    model, others = Misbehaving(pause=0.005), mixed(3)

    async def decode():
        async with engine_of(model, max_batch_size=1) as engine:
            leaving = engine.submit([ABC])
            waiting = engine.submit([request_of("m", replace(FULL, block=4))])
            events = leaving.events()
            async for _, event in events:
                if isinstance(event, str):
                    break
            await events.aclose()
            calls = model.calls
            _, answer = await read(waiting)
            passes = model.calls - calls
            return passes, answer, await outcomes(engine, others)

    passes, answer, rest = run(decode())
    assert passes <= answer.generation.cost.forward_passes + 1  # the one under way
    assert rest == solo(others)


def test_a_deadline_that_cannot_be_met_is_refused_before_the_first_pass():
    async def decode():
        async with engine_of(Misbehaving(pause=0.01), max_batch_size=2) as engine:
            await outcomes(engine, [ABC])  # the engine measures the time of a pass
            with pytest.raises(ServerError, match=r"8 tokens are predicted.* at least 8 forward") as refused:
                await read(engine.submit([replace(ABC, timeout=0.04)]))
            assert refused.value.code == "deadline_unreachable"
            assert engine.num_unfinished == 0
            return await outcome(engine.submit([replace(ABC, timeout=5.0)]))

    assert run(decode()) == alone(TOY, ABC)


def test_a_deadline_that_passes_frees_the_row():
    model, other = Misbehaving(pause=0.03), request_of("xyz", FULL)  # eight passes take over twice the timeout

    async def decode():
        async with engine_of(model, max_batch_size=1) as engine:
            late, waiting = engine.submit([replace(ABC, timeout=0.1)]), engine.submit([other])
            with pytest.raises(ServerError, match=r"not complete after 0\.1 seconds") as expired:
                await read(late)
            assert expired.value.code == "deadline_exceeded"
            calls = model.calls
            return await outcome(waiting), model.calls - calls

    text, passes = run(decode())
    assert text == alone(TOY, other)
    assert passes <= 8 + 1


@pytest.mark.parametrize(
    ("scheduler", "is_in_time"),
    [
        (Scheduler(headroom=0.0), True),
        (Scheduler(max_delay=math.inf), True),
        (Scheduler(max_delay=math.inf, headroom=0.0), False),
    ],
    ids=["ageing", "headroom", "neither"],
)
def test_a_long_request_is_answered_before_its_deadline_among_short_ones(scheduler, is_in_time):
    """Four clients send short requests one after the other; in order of arrival, the long one takes half a second."""
    long = request_of("xyz", replace(CAREFUL, length=lastword.Fixed(64)), timeout=2.0)
    short = request_of("m", replace(CAREFUL, length=lastword.Fixed(2)), timeout=10.0)

    async def decode():
        async with engine_of(Misbehaving(pause=0.004), scheduler, max_batch_size=1) as engine:
            await engine.submit([short] * 8).answers()  # the engine measures the time of a pass

            is_answered = asyncio.Event()

            async def loop():
                while not is_answered.is_set():
                    await outcome(engine.submit([short]))

            clients = [asyncio.ensure_future(loop()) for _ in range(4)]
            await until(lambda: engine.num_unfinished == 4)
            text = await outcome(engine.submit([long]))
            is_answered.set()
            await asyncio.gather(*clients)
            return text

    text = run(decode())
    assert (text == alone(TOY, long)) if is_in_time else (text == "deadline_exceeded")


def test_a_full_queue_refuses_all_answers_of_a_request_or_none():
    async def decode():
        async with engine_of(Misbehaving(pause=0.005), max_batch_size=1, max_queue_size=3) as engine:
            accepted = engine.submit([ABC] * 3)
            with pytest.raises(ServerError) as refused:
                engine.submit([request_of("xyz", FULL)] * 2)
            assert refused.value.code == "overloaded"
            assert refused.value.kind.retry_after >= 1
            assert engine.num_unfinished == 3
            last = engine.submit([request_of("m", FULL)])
            return [answer.generation.text for answer in await accepted.answers()], await outcome(last)

    assert run(decode()) == (solo([ABC] * 3), alone(TOY, request_of("m", FULL)))


def test_refused_requests_share_the_estimate_of_seconds(monkeypatch):
    async def count():
        async with engine_of(Misbehaving(pause=0.05), max_batch_size=1, max_queue_size=1) as engine:
            stream, loads, load = engine.submit([ABC] * 2), [], engine.load
            monkeypatch.setattr(engine, "load", lambda: loads.append(load()) or loads[-1])
            for _ in range(5):
                with pytest.raises(ServerError, match="try again in"):
                    engine.submit([ABC])
            await stream.answers()
            return len(loads)

    assert run(count()) == 1


def test_a_request_that_never_fits_into_the_queue_is_invalid():
    async def decode():
        async with engine_of(TOY, max_batch_size=1, max_queue_size=2) as engine:
            with pytest.raises(SettingError, match="room for 3"):
                engine.submit([ABC] * 4)
            return await engine.submit([ABC] * 3).answers()

    assert len(run(decode())) == 3


def refused(engine):
    with pytest.raises(ServerError) as error:
        engine.submit([ABC])
    return error.value.code


def test_draining_finishes_accepted_requests_and_refuses_new_ones():
    requests = mixed(8)

    async def decode():
        async with engine_of(Misbehaving(pause=0.001), max_batch_size=2) as engine:
            streams = [engine.submit([request]) for request in requests]
            engine.drain(30.0)
            assert (engine.state, refused(engine)) == ("draining", "draining")
            texts = await asyncio.gather(*(outcome(stream) for stream in streams))
            await until(lambda: engine.state == "stopped")
            assert refused(engine) == "draining"
            with pytest.raises(ServerError):
                await engine.lengths([1, 2], 8, "document", Auto())
            return texts

    assert run(decode()) == solo(requests)


def test_requests_that_are_unfinished_after_the_drain_timeout_are_refused():
    async def decode():
        async with engine_of(Misbehaving(pause=0.01), max_batch_size=2) as engine:
            streams = [engine.submit([ABC]) for _ in range(20)]
            first = await outcome(streams[0])
            engine.drain(0.05)
            return [first, *await asyncio.gather(*(outcome(stream) for stream in streams[1:]))]

    assert {*run(decode())} == {alone(TOY, ABC), "draining"}


def test_requests_submitted_while_the_engine_stops_are_refused():
    """From two threads at once: none is lost between the inbox and the end of the thread."""

    async def decode(pause):
        async with engine_of(TOY) as engine:
            await until(lambda: engine.state == "ready")
            asyncio.get_running_loop().call_later(pause, engine.drain, 0.0)
            results = []
            while engine.state != "stopped":
                try:
                    stream = engine.submit([ABC])
                except ServerError:
                    await asyncio.sleep(0)
                    continue
                results.append(await asyncio.wait_for(outcome(stream), 5.0))
            return {*results}

    for step in range(5):
        assert run(decode(0.004 * step)) <= {alone(TOY, ABC), "draining"}


def test_length_probes_of_clients_that_left_are_not_run():
    model = Misbehaving(pause=0.05)

    async def decode():
        async with engine_of(model) as engine:
            probes = [asyncio.ensure_future(engine.lengths([1], at, "document", Auto())) for at in range(1, 21)]
            await until(lambda: model.calls >= 2)  # the warm-up, and the first
            for probe in probes[:-1]:
                probe.cancel()
            return await probes[-1]

    assert run(decode()).slots == 20
    assert model.calls <= 5


@pytest.mark.parametrize("after", [0, 7], ids=["in the probe", "while decoding"])
def test_one_poisoned_request_of_a_hundred_fails_alone(after):
    brief = (replace(CAREFUL, length=lastword.Fixed(2)), FAST)
    requests = [request_of(WORDS[at % 8], brief[at % 2], max_new_tokens=2, seed=at % 4) for at in range(100)]
    requests[37] = MARKED
    texts, _ = decoded(Poisoned(after=after), requests, max_batch_size=16)
    assert texts.pop(37) == "decoding_failed"
    assert texts == solo(requests[:37] + requests[38:])


@dataclass(frozen=True)
class Picky(UnmaskRule):
    """The most confident rule, which fails for a marked prompt."""

    def choose(self, prediction, open, clock, state):
        canvas = prediction.canvas
        for row in range(len(canvas.tokens)):
            prompt = canvas.tokens[row, : canvas.start].tolist()
            if bytes(prompt_ids_of(MARK)) in bytes(prompt) and bool(open[row].any()):
                raise ValueError("no such row (of a test)")
        return MostConfident().choose(prediction, open, clock, state)


def test_a_part_that_fails_for_one_row_fails_that_request():
    recipe = replace(FULL, unmask=Picky())
    requests = [request_of(WORDS[at % len(WORDS)], recipe) for at in range(12)]
    requests[5] = request_of(MARK + "bc", recipe)
    texts, _ = decoded(Misbehaving(), requests, max_batch_size=4)
    assert texts.pop(5) == "decoding_failed"
    assert texts == solo(requests[:5] + requests[6:])


def test_a_failure_is_reported_without_details():
    async def decode():
        async with engine_of(Stumbling(2, 3, 4), max_batch_size=1) as engine:
            with pytest.raises(ServerError, match="decoding this answer failed") as failed:
                await read(engine.submit([ABC]))
            return str(failed.value)

    assert "stumble" not in run(decode())  # messages of third-party code stay in the log


def test_the_batch_shrinks_when_memory_runs_out_and_all_are_answered():
    requests = [request_of(WORDS[at % 8], FULL) for at in range(10)]
    texts, engine = decoded(Narrow(3), requests, max_batch_size=8)
    assert texts == solo(requests)
    assert engine._worker.max_batch_size <= 3


def test_a_request_that_does_not_fit_alone_fails_alone():
    requests = mixed(8)
    requests[4] = MARKED
    texts, _ = decoded(Narrow(3), requests, max_batch_size=8)
    assert texts.pop(4) == "decoding_failed"
    assert texts == solo(requests[:4] + requests[5:])


def test_the_batch_never_grows_when_memory_runs_out():
    """An older session may have more rows than the limit by then."""
    model = Narrow(4, pause=0.01)

    async def decode():
        async with engine_of(model, max_batch_size=4) as engine:
            stream = engine.submit([ABC] * 4)
            await until(lambda: engine._worker.num_running == 4)
            engine._worker.max_batch_size, model.rows = 1, 2
            texts = [answer.generation.text for answer in await stream.answers()]
            return texts, engine._worker.max_batch_size

    assert run(decode()) == (solo([ABC] * 4), 1)


@pytest.mark.parametrize("failing", [(6,), (6, 7)])
def test_streamed_text_stays_true_when_rows_restart(failing):
    """Streamed text is a prefix of the answer; a row that fails twice is refused."""
    model = Stumbling(*failing)
    requests = [request_of(text, recipe) for text in WORDS[:2] for recipe in RECIPES]

    async def watch(stream):
        texts = []
        try:
            async for _, event in stream.events():
                if isinstance(event, str):
                    texts.append(event)
        except ServerError:
            return "".join(texts), False
        return "".join(texts), True

    async def decode():
        async with engine_of(model, max_batch_size=4) as engine:
            streams = [engine.submit([request]) for request in requests]
            return await asyncio.gather(*map(watch, streams))

    results = run(decode())
    assert sum(not complete for _, complete in results) < len(failing)
    for expected, (text, complete) in zip(solo(requests), results):
        assert text == expected if complete else expected.startswith(text)


def test_unread_streams_hold_no_row_and_do_not_grow():
    requests = [request_of(WORDS[at % len(WORDS)], FULL, stream_frames=bool(at % 3)) for at in range(9)]

    async def decode():
        async with engine_of(Misbehaving(), max_batch_size=3) as engine:
            stream = engine.submit(requests)
            await until(lambda: engine.num_unfinished == 0)
            await asyncio.sleep(0.01)
            unread = list(stream._unread.values())
            return unread, [answer.generation.text for answer in await stream.answers()]

    unread, texts = run(decode())
    assert texts == solo(requests)
    assert len(unread) == len(requests)
    for events in unread:
        for kind in (Plan, Frame, str, RequestFinished):
            assert sum(isinstance(event, kind) for event in events) <= 1


def test_a_reader_gets_a_frame_per_pass():
    async def decode():
        async with engine_of(Misbehaving(pause=0.002), max_batch_size=2) as engine:
            engine.submit([request_of("m", FULL)])
            return await frames_of(engine.submit([replace(ABC, stream_frames=True)]))

    frames = run(decode())
    assert [frame.forward_passes for frame in frames] == sorted({frame.forward_passes for frame in frames})
    assert frames[-1].forward_passes == 8


def test_recipes_share_the_time():
    """Many slow requests do not make a fast one wait for their end."""

    async def decode():
        async with engine_of(Misbehaving(pause=0.001), max_batch_size=4) as engine:
            slow = engine.submit([ABC] * 16)
            await engine.submit([request_of("m", PAPER, max_new_tokens=2)]).answers()
            unfinished = engine.num_unfinished
            await slow.answers()
            return unfinished

    assert run(decode()) >= 4


LATE_REFUSALS = {
    "in the probe": (replace(CAREFUL, length=lastword.Budget(max_passes=1)), "allow at least"),
    "on the canvas": (replace(FULL, commit=lastword.Prophet(literals=((99, 0),))), "slot 99"),
}


@pytest.mark.parametrize("case", LATE_REFUSALS)
def test_a_setting_that_is_wrong_for_a_prompt_is_reported_and_not_logged(case, caplog):
    recipe, words = LATE_REFUSALS[case]

    async def decode():
        async with engine_of(TOY, max_batch_size=4) as engine:
            wrong, right = engine.submit([request_of("abc", recipe)]), engine.submit([ABC])
            with pytest.raises(SettingError, match=words):
                await read(wrong)
            return await outcome(right)

    assert run(decode()) == alone(TOY, ABC)
    assert not caplog.records


@pytest.mark.parametrize("end", ["answered", "cancelled", "stopped"])
def test_a_session_frees_its_memory_when_its_last_row_ends(end):
    """Caches and CUDA graphs are freed at once, not when Python collects garbage."""

    async def decode():
        async with engine_of(Misbehaving(pause=0.01), max_batch_size=2) as engine:
            stream = engine.submit([ABC])
            await until(lambda: engine._worker._sessions)
            session = weakref.ref(engine._worker._sessions[0])
            if end == "answered":
                await stream.answers()
            elif end == "cancelled":
                stream.cancelled = True
            else:
                await engine.stop(0.0)
                engine._worker._sessions.clear()
            await until(lambda: session() is None)

    gc.disable()
    try:
        run(decode())
    finally:
        gc.enable()


class Stuttering(Letters):
    """The tokenizer of the toy model, which fails at one letter."""

    def decode(self, ids, **options):
        text = super().decode(ids, **options)
        if "d" in text:
            raise ValueError("no such letter (of a test)")
        return text


def test_a_text_that_cannot_be_decoded_fails_its_own_answer():
    model = Misbehaving()
    model.tokenizer = Stuttering()
    requests = [request_of(text, FULL) for text in ("abc", "mno") * 2]
    expected = ["decoding_failed" if "d" in text else text for text in solo(requests)]
    assert expected.count("decoding_failed") == 2
    texts, engine = decoded(model, requests, max_batch_size=2)
    assert texts == expected
    assert engine.fault is None
