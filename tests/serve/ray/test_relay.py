"""One request handed to replicas that vanish: never an answer twice, never half of one as a whole."""

import asyncio
import json

import pytest

from lastword.serve.ray import MAX_TRIES, ForwardedRequest, RetryingRelay, run_application
from lastword.serve.request import DrainingError, ReplicaLostError

ASKED = ForwardedRequest("POST", "/v1/completions", b"", (), b"{}")
HEAD = {"type": "http.response.start", "status": 200}
WHOLE = [
    {**HEAD, "headers": [(b"content-type", b"application/json")]},
    {"type": "http.response.body", "body": b"{}"},
]
STREAM = [
    {**HEAD, "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")]},
    {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True},
    {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True},
    {"type": "http.response.body", "body": b""},
]


class Vanished(Exception):
    pass


def relayed(messages, *fails, over=None):
    """What the client was sent, and how many replicas were asked; `fails`: messages before each is lost."""
    sent, asked, failing = [], 0, list(fails)

    async def ask(request):
        nonlocal asked
        assert request is ASKED
        asked += 1
        until = failing.pop(0) if failing else len(messages)
        for message in messages[:until]:
            yield message
        if until < len(messages):
            if over is not None:
                await asyncio.sleep(60)
            raise Vanished

    async def send(message):
        sent.append(message)

    async def run():
        relay = RetryingRelay(ask, lambda error: isinstance(error, Vanished))
        if over is not None:
            asyncio.get_running_loop().call_later(over, relay.over.set)
        await relay(ASKED, send)

    error = None
    try:
        asyncio.run(asyncio.wait_for(run(), 10))
    except Exception as raised:
        error = raised
    return sent, asked, error


def test_a_replica_that_stays_is_asked_once():
    assert relayed(WHOLE) == (WHOLE, 1, None)
    assert relayed(STREAM) == (STREAM, 1, None)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("messages", [WHOLE, STREAM])
def test_another_one_is_asked_as_long_as_nothing_was_sent(messages, after):
    assert relayed(messages, after) == (messages, 2, None)


def test_who_loses_one_replica_after_the_other_is_told_to_ask_again():
    sent, asked, error = relayed(WHOLE, *[1] * MAX_TRIES)
    assert (sent, asked) == ([], MAX_TRIES)
    assert isinstance(error, ReplicaLostError)
    assert (error.status, error.retry_after, error.again) == (503, 1, True)


@pytest.mark.parametrize("after", [2, 3])
def test_a_stream_that_had_begun_ends_with_an_error_and_is_not_begun_again(after):
    sent, asked, error = relayed(STREAM, after)
    assert (asked, error) == (1, None)
    assert sent[:after] == STREAM[:after]
    (last,) = sent[after:]
    assert not last["more_body"]
    told = json.loads(last["body"].removeprefix(b"data: "))
    assert told["error"]["code"] == "replica_lost"


def test_what_a_replica_raises_itself_is_not_asked_again():
    async def ask(request):
        raise ZeroDivisionError
        yield

    async def send(message):
        raise AssertionError("nothing is to be sent")

    async def run():
        await RetryingRelay(ask, lambda error: False)(ASKED, send)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_a_stream_that_a_fault_of_the_replica_ends_says_so():
    sent = []

    async def ask(request):
        for message in STREAM[:2]:
            yield message
        raise ZeroDivisionError

    async def send(message):
        sent.append(message)

    async def run():
        await RetryingRelay(ask, lambda error: False)(ASKED, send)

    asyncio.run(run())
    assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "server_error"


def test_who_waits_when_time_is_over_is_refused():
    sent, asked, error = relayed(WHOLE, 1, over=0.05)
    assert (sent, asked) == ([], 1)
    assert isinstance(error, DrainingError)
    sent, asked, error = relayed(STREAM, 2, over=0.05)
    assert error is None
    assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "draining"


def test_the_application_hears_that_who_asked_has_left():
    """Stopping to listen cancels what the application does."""
    heard = []

    async def app(scope, receive, send):
        assert (await receive())["body"] == ASKED.body
        await send(WHOLE[0])
        try:
            await receive()
        finally:
            heard.append("left")

    async def run():
        messages = run_application(app, ASKED)
        assert await anext(messages) == WHOLE[0]
        await messages.aclose()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert heard == ["left"]
