"""A stream of events: comments while nothing comes, and everything given back when the client leaves."""

import asyncio

from lastword.serve import app as events
from lastword.serve.app import KEEPALIVE_COMMENT, EventStreamResponse


class Client:
    """Takes what it is sent, and leaves after so many messages, or never."""

    def __init__(self, most=None):
        self.sent, self.most, self.left = [], most, asyncio.Event()

    async def send(self, message):
        self.sent.append(message.get("body"))
        if len(self.sent) == self.most:
            self.left.set()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


async def played(client, pauses):
    """Events after these pauses, sent to a client: what was closed, in order."""
    closed = []

    async def made():
        try:
            for number, seconds in enumerate(pauses):
                await asyncio.sleep(seconds)
                yield b"%d" % number
        finally:
            closed.append("events")

    async def close():
        closed.append("jobs")

    await asyncio.wait_for(EventStreamResponse(made(), close)({}, client.receive, client.send), 10)
    return closed


def test_a_client_that_waits_hears_comments(monkeypatch):
    monkeypatch.setattr(events, "KEEPALIVE_SECONDS", 0.05)

    async def run():
        client = Client()
        assert await played(client, [0, 0.3, 0]) == ["events", "jobs"]
        return client.sent

    start, first, *comments, second, third, end = asyncio.run(run())
    assert (start, first, second, third, end) == (None, b"0", b"1", b"2", b"")
    assert 2 <= len(comments) <= 6
    assert set(comments) == {KEEPALIVE_COMMENT}


def test_without_pauses_there_are_no_comments():
    async def run():
        client = Client()
        await played(client, [0] * 5)
        return client.sent

    assert asyncio.run(run()) == [None, b"0", b"1", b"2", b"3", b"4", b""]


def test_whoever_leaves_between_two_events_leaves_nothing_open(monkeypatch):
    monkeypatch.setattr(events, "KEEPALIVE_SECONDS", 0.05)

    async def run():
        return await played(Client(most=3), [0, 60])

    assert asyncio.run(run()) == ["events", "jobs"]
