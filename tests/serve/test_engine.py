"""The engine in process: every answer is its solo run, whatever happens to others."""

import asyncio
import gc
import weakref
from dataclasses import dataclass, replace

import pytest

import lastword
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.models.toy import Letters
from lastword.policies.unmask.ranked import MostConfident
from lastword.policies.unmask.rule import UnmaskRule
from lastword.recipe.recipe import Recipe
from lastword.serve.request import (
    DeadlineExceededError,
    DeadlineUnreachableError,
    DecodingFailedError,
    DrainingError,
    FrameEvent,
    OverloadedError,
    RequestFinished,
    RequestPlanned,
    ServerRequest,
    TextDelta,
)
from lastword.survival.interpretation import Auto
from tests.serve.engines import (
    MARK,
    SHORT,
    Misbehaving,
    Narrow,
    Poisoned,
    Stumbling,
    alone,
    engine_of,
    heard,
    job,
    outcome,
    prompt_of,
    run,
    until,
)

CAREFUL, FAST, PAPER = (Recipe.named(name) for name in ("careful", "fast", "paper"))
DRAWN = replace(CAREFUL, sampling=Sampling(temperature=0.7))
FULL = replace(CAREFUL, length=lastword.Fixed(8))  # eight passes, whatever comes
MIXED = (CAREFUL, FAST, PAPER, DRAWN, FULL)
WORDS = ("abc", "m", "the cat", "xyz", "lorem ipsum dolor", "q r s t u v w", "aa", "zebra")


def mixed(count, **more):
    """So many jobs that differ in prompt, recipe, seed, cap and stop strings."""
    return [
        job(
            WORDS[at % len(WORDS)],
            MIXED[at % len(MIXED)],
            seed=at,
            most=(None, 5, None, 3)[at % 4],
            stop=((), ("k",), ("uv", "fg"))[at % 3],
            **more,
        )
        for at in range(count)
    ]


def marked(recipe=FULL, **more):
    return job(MARK + "bc", recipe, **more)


async def all_of(engine, jobs):
    streams = engine.submit(*jobs)
    return await asyncio.gather(*(outcome(stream) for stream in streams))


@pytest.mark.parametrize("slots", [1, 4])
def test_mixed_jobs_equal_their_solo_runs(slots):
    model, jobs = Misbehaving(), mixed(20)

    async def ask():
        async with engine_of(model, slots=slots) as engine:
            return await all_of(engine, jobs)

    assert run(ask()) == [alone(SHORT, own) for own in jobs]


def test_a_networks_answers_equal_their_solo_runs():
    model = lastword.load("tiny-llada-base", device="cpu")
    ask_for = ["Tom has 3 apples and buys 4.", "def add(a, b):", "Solve x + 3 = 5.", "1"]
    recipes = (FAST, replace(FAST, sampling=Sampling(temperature=0.7)), CAREFUL, PAPER)
    jobs = [
        ServerRequest(tuple(model.tokenizer.encode(text)), recipe, at, most=16, stop=(".",) if at % 2 else ())
        for at, (text, recipe) in enumerate(zip(ask_for, recipes))
    ]

    async def ask():
        async with engine_of(model, slots=3) as engine:
            return await all_of(engine, jobs)

    assert run(ask()) == [alone(model, own) for own in jobs]


def test_what_an_answer_says_of_itself_is_its_own():
    model, jobs = Misbehaving(), mixed(12)

    async def ask():
        async with engine_of(model, slots=4) as engine:
            return [(await heard(stream))[1] for stream in engine.submit(*jobs)]

    for own, answer in zip(jobs, run(ask())):
        solo = lastword.generate(SHORT, list(own.prompt), recipe=own.recipe, seed=own.seed)
        assert tuple(answer.generation.prompt) == own.prompt
        assert answer.stopped is None or answer.stopped in own.stop
        assert answer.tokens == len(answer.text)  # a letter each
        if own.most is None and answer.stopped is None:
            assert answer.generation.canvas == solo.canvas
            assert answer.generation.cost == solo.cost
            assert answer.cut == (solo.finish is not lastword.api.Finish.ENDED)


def test_a_job_that_is_cancelled_leaves_its_slot_between_two_passes():
    model, others = Misbehaving(pause=0.005), mixed(3)

    async def ask():
        async with engine_of(model, slots=1) as engine:
            leaving, coming = engine.submit(job("abc", FULL), job("m", replace(FULL, block=4)))
            async for event in leaving:
                if isinstance(event, TextDelta):
                    break
            began = model.calls
            _, answer = await heard(coming)
            passes = model.calls - began
            rest = await all_of(engine, others)
            return passes, answer, rest

    passes, answer, rest = run(ask())
    assert passes <= answer.generation.cost.forward_passes + 1  # the one under way
    assert rest == [alone(SHORT, own) for own in others]


def test_cancelling_changes_nobody_else():
    model, jobs = Misbehaving(pause=0.001), mixed(12)

    async def leave(stream):
        async for event in stream:
            if isinstance(event, TextDelta):
                return None

    async def ask():
        async with engine_of(model, slots=4) as engine:
            streams = engine.submit(*jobs)
            return await asyncio.gather(
                *(leave(own) if at % 2 else outcome(own) for at, own in enumerate(streams))
            )

    assert run(ask())[::2] == [alone(SHORT, own) for own in jobs[::2]]


def test_a_deadline_that_cannot_be_met_is_refused_before_the_first_pass():
    model = Misbehaving(pause=0.01)

    async def ask():
        async with engine_of(model, slots=2) as engine:
            await all_of(engine, [job("abc", FULL)])  # it learns how long a pass takes
            (stream,) = engine.submit(job("abc", FULL, seconds=0.04))
            with pytest.raises(DeadlineUnreachableError, match=r"8 tokens are predicted.* at least 8 passes"):
                await stream.answer()
            assert engine.waiting == 0
            (stream,) = engine.submit(job("abc", FULL, seconds=5.0))
            return (await stream.answer()).text

    assert run(ask()) == alone(SHORT, job("abc", FULL))


def test_a_deadline_that_passes_gives_the_slot_back():
    model = Misbehaving(pause=0.01)

    async def ask():
        async with engine_of(model, slots=1) as engine:
            late, other = engine.submit(job("abc", FULL, seconds=0.1), job("xyz", FULL))
            with pytest.raises(DeadlineExceededError, match=r"not complete after 0\.1 seconds"):
                await late.answer()
            began = model.calls
            answer = await other.answer()
            return answer, model.calls - began

    answer, passes = run(ask())
    assert answer.text == alone(SHORT, job("xyz", FULL))
    assert passes <= 8 + 1


def test_a_full_queue_refuses_all_of_a_request_or_nothing():
    model = Misbehaving(pause=0.005)

    async def ask():
        async with engine_of(model, slots=1, queue=3) as engine:
            taken = engine.submit(*[job("abc", FULL)] * 3)
            with pytest.raises(OverloadedError) as refused:
                engine.submit(*[job("xyz", FULL)] * 2)
            assert refused.value.retry_after >= 1
            assert engine.waiting == 3
            (one,) = engine.submit(job("m", FULL))
            return await asyncio.gather(*(outcome(stream) for stream in (*taken, one)))

    expected = [alone(SHORT, job(text, FULL)) for text in ("abc", "abc", "abc", "m")]
    assert run(ask()) == expected


def test_draining_answers_those_in_hand_and_nobody_else():
    model, jobs = Misbehaving(pause=0.001), mixed(8)

    async def ask():
        async with engine_of(model, slots=2) as engine:
            streams = engine.submit(*jobs)
            engine.drain(30.0)
            with pytest.raises(DrainingError):
                engine.submit(job("abc", FULL))
            answers = await asyncio.gather(*(outcome(stream) for stream in streams))
            await until(lambda: engine.state == "stopped")
            with pytest.raises(DrainingError):
                engine.submit(job("abc", FULL))
            return answers

    assert run(ask()) == [alone(SHORT, own) for own in jobs]


def test_who_is_not_done_when_the_time_to_drain_is_over_is_told_so():
    model = Misbehaving(pause=0.01)

    async def ask():
        async with engine_of(model, slots=2) as engine:
            streams = engine.submit(*[job("abc", FULL)] * 20)
            first = await outcome(streams[0])
            engine.drain(0.05)
            return [first, *await asyncio.gather(*(outcome(stream) for stream in streams[1:]))]

    found = run(ask())
    assert {*found} == {alone(SHORT, job("abc", FULL)), "DrainingError"}


@pytest.mark.parametrize("after", [0, 7], ids=["in its probe", "in the midst of its answer"])
def test_one_poisoned_request_of_a_hundred_fails_alone(after):
    model, brief = Poisoned(after=after), (replace(CAREFUL, length=lastword.Fixed(2)), FAST)
    jobs = [job(WORDS[at % 8], brief[at % 2], most=2, seed=at % 4) for at in range(100)]
    jobs[37] = marked()

    async def ask():
        async with engine_of(model, slots=16) as engine:
            return await all_of(engine, jobs)

    found = run(ask())
    assert found[37] == "DecodingFailedError"
    assert found[:37] + found[38:] == [alone(SHORT, own) for own in jobs[:37] + jobs[38:]]


@dataclass(frozen=True)
class Picky(UnmaskRule):
    """The most confident, unless a row's prompt is marked."""

    def choose(self, prediction, open, clock, state):
        canvas = prediction.canvas
        for row in range(len(canvas.tokens)):
            prompt = canvas.tokens[row, : canvas.start].tolist()
            if bytes(prompt_of(MARK)) in bytes(prompt) and bool(open[row].any()):
                raise ValueError("no such row (of a test)")
        return MostConfident().choose(prediction, open, clock, state)


def test_a_part_that_raises_for_one_row_fails_that_row():
    model, recipe = Misbehaving(), replace(FULL, unmask=Picky())
    jobs = [job(WORDS[at % len(WORDS)], recipe) for at in range(12)]
    jobs[5] = marked(recipe)

    async def ask():
        async with engine_of(model, slots=4) as engine:
            return await all_of(engine, jobs)

    found = run(ask())
    assert found[5] == "DecodingFailedError"
    assert found[:5] + found[6:] == [alone(SHORT, own) for own in jobs[:5] + jobs[6:]]


def test_a_failure_is_told_by_its_kind_and_no_more():
    model = Stumbling(2, 3, 4)

    async def ask():
        async with engine_of(model, slots=1) as engine:
            (stream,) = engine.submit(job("abc", FULL))
            with pytest.raises(DecodingFailedError, match="RuntimeError") as told:
                await stream.answer()
            return str(told.value)

    assert "stumble" not in run(ask())  # what others' code says stays in the log


def test_short_memory_shrinks_the_slots_and_all_are_answered():
    model, jobs = Narrow(3), [job(WORDS[at % 8], FULL) for at in range(10)]

    async def ask():
        async with engine_of(model, slots=8) as engine:
            found = await all_of(engine, jobs)
            return found, engine._worker.slots

    found, slots = run(ask())
    assert found == [alone(SHORT, own) for own in jobs]
    assert slots <= 3


def test_a_request_that_does_not_fit_alone_fails_alone():
    model, jobs = Narrow(3), mixed(8)
    jobs[4] = marked()

    async def ask():
        async with engine_of(model, slots=8) as engine:
            return await all_of(engine, jobs)

    found = run(ask())
    assert found[4] == "DecodingFailedError"
    assert found[:4] + found[5:] == [alone(SHORT, own) for own in jobs[:4] + jobs[5:]]


@pytest.mark.parametrize("failing", [(6,), (6, 7)])
def test_what_went_out_stays_true_where_rows_begin_anew(failing):
    """What was read is the beginning of the answer; a row that was unlucky twice is refused."""
    model, jobs = Stumbling(*failing), [job(text, recipe) for text in WORDS[:2] for recipe in MIXED]

    async def watched(stream):
        texts = []
        try:
            async for event in stream:
                if isinstance(event, TextDelta):
                    texts.append(event.text)
        except DecodingFailedError:
            return "".join(texts), False
        return "".join(texts), True

    async def ask():
        async with engine_of(model, slots=4) as engine:
            return await asyncio.gather(*(watched(own) for own in engine.submit(*jobs)))

    found = run(ask())
    assert sum(not complete for _, complete in found) < len(failing)
    model.failing = ()
    for own, (text, complete) in zip(jobs, found):
        whole = alone(SHORT, own)
        assert text == whole if complete else whole.startswith(text)


def test_streams_that_nobody_reads_hold_no_slot_and_do_not_grow():
    model = Misbehaving()
    jobs = [job(WORDS[at % len(WORDS)], FULL, frames=bool(at % 3)) for at in range(9)]

    async def ask():
        async with engine_of(model, slots=3) as engine:
            streams = engine.submit(*jobs)
            await until(lambda: engine.waiting == 0)
            kept = [list(stream._events) for stream in streams]
            return kept, await asyncio.gather(*(outcome(stream) for stream in streams))

    kept, found = run(ask())
    assert found == [alone(SHORT, own) for own in jobs]
    for events in kept:
        for kind, most in ((RequestPlanned, 1), (FrameEvent, 1), (TextDelta, 2), (RequestFinished, 1)):
            assert sum(isinstance(event, kind) for event in events) <= most


def test_frames_show_every_pass_to_one_who_reads():
    model = Misbehaving(pause=0.002)

    async def ask():
        async with engine_of(model, slots=2) as engine:
            (stream, _) = engine.submit(job("abc", FULL, frames=True), job("m", FULL))
            return [event.frame async for event in stream if isinstance(event, FrameEvent)]

    frames = run(ask())
    assert [frame.forward_passes for frame in frames] == sorted({frame.forward_passes for frame in frames})
    assert frames[-1].forward_passes == 8


def test_recipes_take_turns():
    """Many slow ones do not keep a fast one waiting for their end."""
    model = Misbehaving(pause=0.001)

    async def ask():
        async with engine_of(model, slots=4) as engine:
            slow = engine.submit(*[job("abc", FULL)] * 16)
            (quick,) = engine.submit(job("m", PAPER, most=2))
            await quick.answer()
            left = engine.waiting
            await asyncio.gather(*(stream.answer() for stream in slow))
            return left

    assert run(ask()) >= 4


LATE_REFUSALS = {
    "found by the probe": (replace(CAREFUL, length=lastword.Budget(max_passes=1)), "allow at least"),
    "found by the canvas": (replace(FULL, commit=lastword.Prophet(literals=((99, 0),))), "slot 99"),
}


@pytest.mark.parametrize("case", LATE_REFUSALS)
def test_what_a_part_refuses_at_work_is_told_in_its_own_words(case, caplog):
    recipe, words = LATE_REFUSALS[case]

    async def ask():
        async with engine_of(SHORT, slots=4) as engine:
            streams = engine.submit(job("abc", recipe), job("abc", FULL))
            with pytest.raises(SettingError, match=words):
                await streams[0].answer()
            return (await streams[1].answer()).text

    assert run(ask()) == alone(SHORT, job("abc", FULL))
    assert not caplog.records  # anybody can make it happen: it is no line of the operator's log


@pytest.mark.parametrize("leaves", ["answered", "cancelled", "stopped"])
def test_a_session_gives_back_what_it_holds_when_its_last_row_leaves(leaves):
    """Caches and the model's graphs: not at some later time, when Python looks for garbage."""
    model = Misbehaving(pause=0.01)

    async def ask():
        async with engine_of(model, slots=2) as engine:
            (stream,) = engine.submit(job("abc", FULL))
            await until(lambda: engine._worker._sessions)
            session = weakref.ref(engine._worker._sessions[0])
            if leaves == "answered":
                await stream.answer()
            elif leaves == "cancelled":
                stream.cancel()
            else:
                await engine.stop(0.0)
                engine._worker._sessions.clear()
            await until(lambda: session() is None)

    gc.disable()
    try:
        run(ask())
    finally:
        gc.enable()


class Stuttering(Letters):
    """The toy's tokenizer, which cannot spell one letter."""

    def decode(self, ids, **options):
        text = super().decode(ids, **options)
        if "d" in text:
            raise ValueError("no such letter (of a test)")
        return text


def test_a_text_that_cannot_be_spelled_fails_its_own_answer():
    model = Misbehaving()
    model.tokenizer = Stuttering()
    jobs = [job("abc", FULL), job("mno", FULL), job("abc", FULL), job("mno", FULL)]

    async def ask():
        async with engine_of(model, slots=2) as engine:
            found = await all_of(engine, jobs)
            return found, engine.state

    spelled = [alone(SHORT, own) for own in jobs]
    assert ["d" in text for text in spelled] == [True, False, True, False]
    assert run(ask()) == (["DecodingFailedError", spelled[1], "Faulty", spelled[3]], "ready")


def test_what_is_handed_in_while_the_engine_stops_is_refused():
    async def ask():
        async with engine_of(SHORT) as engine:
            await engine.stop(0.0)
            engine._check_open = lambda count: None  # it stopped right after this was asked
            (stream,) = engine.submit(job("abc", FULL))
            with pytest.raises(DrainingError):
                await stream.answer()
            with pytest.raises(DrainingError):
                await asyncio.wait_for(engine.lengths([1, 2], 8, "document", Auto()), 5.0)

    run(ask())


def test_probes_of_those_who_left_are_not_made():
    model = Misbehaving(pause=0.05)

    async def ask():
        async with engine_of(model) as engine:
            asked = [
                asyncio.ensure_future(engine.lengths([at], 8, "document", Auto())) for at in range(1, 21)
            ]
            await until(lambda: model.calls >= 2)  # the one that warms up, and the first
            for own in asked[:-1]:
                own.cancel()
            return await asked[-1]

    assert run(ask()).slots == 8
    assert model.calls <= 5


def test_more_answers_than_there_is_ever_room_for_are_not_worth_asking_for_again():
    async def ask():
        async with engine_of(SHORT, slots=1, queue=2) as engine:
            with pytest.raises(SettingError, match="room for 3"):
                engine.submit(*[job("abc", FULL)] * 4)
            return await all_of(engine, [job("abc", FULL)] * 3)

    assert len(run(ask())) == 3


def test_short_memory_never_adds_slots():
    """Rows of an older session may be more than the slots that are left."""
    model = Narrow(4, pause=0.01)

    async def ask():
        async with engine_of(model, slots=4) as engine:
            streams = engine.submit(*[job("abc", FULL)] * 4)
            await until(lambda: engine._worker.at_work == 4)
            engine._worker.slots, model.most = 1, 2
            texts = await asyncio.gather(*(outcome(stream) for stream in streams))
            return texts, engine._worker.slots

    assert run(ask()) == ([alone(SHORT, job("abc", FULL))] * 4, 1)
