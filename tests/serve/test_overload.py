"""The server under more than it can take: who leaves, who is too many, who is poisoned, and SIGTERM."""

import asyncio
import json
import signal
import socket
import time

import httpx
import pytest

from lastword.models.toy import Toy
from lastword.recipe.recipe import Recipe
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings
from tests.serve.engines import MARK, SHORT, Misbehaving, Poisoned, alone, prompt_of, run
from tests.serve.process import served, texts

EIGHT = {"name": "fixed", "slots": 8}
WORDS = ("abc", "m", "the cat", "xyz", "lorem ipsum", "q r s", "aa", "zebra")


def body(prompt="abc", **more):
    return {"model": "toy", "prompt": prompt, "length": EIGHT, **more}


def expected(text):
    """The solo run."""
    recipe = Recipe.coerce(None).with_choices(length="fixed:8")
    return alone(SHORT, ServerRequest(prompt_of(text), recipe))


def client_of(url):
    return httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=None))


async def whole(client, prompt, **more):
    """Status, and the text or what was said instead."""
    reply = await client.post("/v1/completions", json=body(prompt, **more))
    data = reply.json()
    if reply.status_code == 200:
        return 200, data["choices"][0]["text"], data["id"]
    return reply.status_code, data["error"]["code"], reply.headers.get("retry-after")


async def leave(client, prompt):
    """Ask, hear the beginning, and go."""
    async with client.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as reply:
        async for _ in reply.aiter_lines():
            return


async def idle(engine, seconds=10.0):
    ends = time.monotonic() + seconds
    while any(engine.counts().values()):
        assert time.monotonic() < ends, engine.counts()
        await asyncio.sleep(0.01)


def test_a_second_of_clients_of_whom_every_other_leaves(live, capsys):
    model = Misbehaving(pause=0.002)
    server = live(model, limits=ServerSettings(slots=4, queue=1000, drain=5.0))

    async def ask():
        found, left, ends = [], 0, time.monotonic() + 1.0
        async with client_of(server.url) as client:

            async def stays(number):
                while time.monotonic() < ends:
                    prompt = WORDS[(number + len(found)) % len(WORDS)]
                    found.append((prompt, *(await whole(client, prompt))))

            async def leaves(number):
                nonlocal left
                while time.monotonic() < ends:
                    await leave(client, WORDS[number % len(WORDS)])
                    left += 1

            await asyncio.gather(*(leaves(n) if n % 2 else stays(n) for n in range(16)))
            began = time.monotonic()
            await idle(server.engine)
            return found, left, time.monotonic() - began

    found, left, seconds = run(ask())
    with capsys.disabled():
        print(f"\n{left} clients left, {len(found)} stayed; all slots free {seconds:.2f} s later")
    assert left >= 8
    assert len(found) >= 4
    assert all((status, text) == (200, expected(prompt)) for prompt, status, text, _ in found)
    assert seconds < 2.0


def test_three_times_as_many_as_there_is_room_for(live, capsys):
    """Room for 4 + 8: of 36 at once most are told to come back, and those who do are answered once."""
    server = live(Misbehaving(pause=0.002), limits=ServerSettings(slots=4, queue=8, drain=5.0))

    async def persistent(client, number, refused):
        prompt = WORDS[number % len(WORDS)]
        while True:
            status, said, more = await whole(client, prompt)
            if status == 200:
                return prompt, said, more
            assert (status, said) == (429, "overloaded")
            refused.append(int(more))
            await asyncio.sleep(0.1)  # sooner than it was told to: a test is in a hurry

    async def ask():
        refused = []
        async with client_of(server.url) as client:
            asking = (persistent(client, number, refused) for number in range(36))
            return refused, await asyncio.gather(*asking)

    began = time.monotonic()
    refused, found = run(ask())
    seconds = time.monotonic() - began
    with capsys.disabled():
        told = f"{len(refused)} times 429, Retry-After {min(refused)} to {max(refused)} s"
        print(f"\n36 requests for 12 places: {told}; all answered after {seconds:.1f} s")
    assert len(refused) >= 12
    assert min(refused) >= 1
    assert all(text == expected(prompt) for prompt, text, _ in found)
    assert len({name for _, _, name in found}) == 36  # each answer is one of its own


def test_a_poisoned_request_among_a_hundred(live, capsys):
    model = Poisoned(after=7)
    server = live(model, limits=ServerSettings(slots=16, queue=200, drain=5.0))
    prompts = [WORDS[at % len(WORDS)] for at in range(100)]
    prompts[41] = MARK + "bc"

    async def ask():
        async with client_of(server.url) as client:
            return await asyncio.gather(
                *(whole(client, prompt, max_tokens=3 if prompt in WORDS else 8) for prompt in prompts)
            )

    began = time.monotonic()
    found = run(ask())
    assert found[41][:2] == (500, "decoding_failed")
    others = [(prompt, own) for prompt, own in zip(prompts, found) if prompt in WORDS]
    assert len(others) == 99
    for prompt, (status, text, _) in others:
        job = ServerRequest(prompt_of(prompt), Recipe.coerce(None).with_choices(length="fixed:8"), most=3)
        assert (status, text) == (200, alone(SHORT, job))
    with capsys.disabled():
        print(f"\n1 of 100 was poisoned: 99 right after {time.monotonic() - began:.1f} s")


def test_nothing_of_a_request_is_in_the_reply_to_another(live):
    """Every request carries words of its own, in its prompt, its user and a field that is refused."""
    server = live(Poisoned(), limits=ServerSettings(slots=3, queue=100, drain=5.0))
    secrets = [f"{MARK if at == 5 else ''}secret {chr(97 + at) * 3} end" for at in range(12)]

    async def one(client, at):
        sent = body(secrets[at], user=f"user-{at:03}", stream=bool(at % 2), seed=at)
        if at % 4 == 3:
            sent["recipe"] = secrets[at]  # no such recipe
        reply = await client.post("/v1/completions", json=sent)
        return reply.text + str(reply.headers)

    async def ask():
        async with client_of(server.url) as client:
            replies = await asyncio.gather(*(one(client, at) for at in range(12)))
            return replies, (await client.get("/metrics")).text + (await client.get("/health")).text

    replies, public = run(ask())
    for at, secret in enumerate(secrets):
        others = [public, *(reply for other, reply in enumerate(replies) if other != at)]
        words = (secret, f"user-{at:03}", f" {chr(97 + at) * 3} ")
        assert not [word for word in words for reply in others if word in reply]
    ids = [json.loads(reply.split("Headers(")[0])["id"] for reply in replies[0:12:4]]
    assert len({*ids}) == len(ids)


TOY = Toy()
LONG = {"name": "fixed", "slots": 32}


async def begun(client, number, started):
    """A stream; says when it has begun, and what came of it."""
    sent = body(WORDS[number % len(WORDS)], stream=True) | {"length": LONG}
    lines = []
    try:
        async with client.stream("POST", "/v1/completions", json=sent) as reply:
            async for line in reply.aiter_lines():
                started.set()
                lines.append(line)
    except httpx.HTTPError:
        return None
    return lines


def test_sigterm_under_load_answers_those_in_hand_and_leaves(capsys):
    with served("--slots", 4, "--drain", 20) as server:

        async def ask():
            async with client_of(server.url) as client:
                started = asyncio.Event()
                asking = [asyncio.create_task(begun(client, n, started)) for n in range(24)]
                await asyncio.wait_for(started.wait(), 20)
                await asyncio.sleep(0.05)  # so that all were handed in
                server.process.send_signal(signal.SIGTERM)
                told = time.monotonic()
                return await asyncio.gather(*asking), told

        found, told = run(ask())
        assert server.process.wait(25) == 0
        seconds = time.monotonic() - told
    for number, lines in enumerate(found):
        chunks = texts(lines)
        text = "".join(own["text"] for chunk in chunks for own in chunk["choices"])
        recipe = Recipe.coerce(None).with_choices(length="fixed:32")
        assert text == alone(TOY, ServerRequest(prompt_of(WORDS[number % len(WORDS)]), recipe))
    with capsys.disabled():
        print(f"\nSIGTERM with 24 streams in hand: all complete, exit 0 after {seconds:.2f} s")


@pytest.mark.full
def test_a_second_sigterm_stops_at_once():
    with served("--slots", 1, "--drain", 60) as server:

        async def ask():
            async with client_of(server.url) as client:
                started = asyncio.Event()
                asking = [asyncio.create_task(begun(client, n, started)) for n in range(40)]
                await asyncio.wait_for(started.wait(), 20)
                await asyncio.sleep(0.05)
                server.process.send_signal(signal.SIGTERM)
                assert "drains" in await asyncio.to_thread(server.process.stdout.readline)
                server.process.send_signal(signal.SIGTERM)
                told = time.monotonic()
                await asyncio.to_thread(server.process.wait, 20)
                seconds = time.monotonic() - told
                return await asyncio.gather(*asking), seconds

        found, seconds = run(ask())
    assert seconds < 5.0
    assert sum(lines is None or "data: [DONE]" not in lines for lines in found) >= 20


def test_readers_that_do_not_read_hold_no_slot(live, capsys):
    """Four clients read nothing for longer than they may; eight others are answered meanwhile."""
    model = Misbehaving(pause=0.002)
    server = live(model, limits=ServerSettings(slots=2, reading=0.3, queue=200, drain=5.0), send_buffer=4096)
    sent = json.dumps(body(stream=True, diffusing=True, n=8)).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(sent)}\r\n\r\n".encode()
    )
    silent = []
    for _ in range(4):
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.connect(("127.0.0.1", server.port))
        own.sendall(head + sent)
        silent.append(own)

    async def ask():
        async with client_of(server.url) as client:
            found = await asyncio.gather(*(whole(client, word) for word in WORDS))
            answered = time.monotonic() - began
            await idle(server.engine, 30.0)
            return found, answered, time.monotonic() - began

    began = time.monotonic()
    found, answered, over = run(ask())
    with capsys.disabled():
        print(
            f"\n4 clients that do not read: 8 others answered after {answered:.1f} s, idle after {over:.1f} s"
        )
    for own in silent:
        own.close()
    assert [own[:2] for own in found] == [(200, expected(word)) for word in WORDS]
