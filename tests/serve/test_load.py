"""Many clients of a live server: equal answers, disconnects, slow readers, overload, and isolation."""

import asyncio
import contextlib
import json
import random
import socket
import time

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

import lastword
from lastword.decoding.sampling import Sampling
from lastword.recipe.recipe import Recipe
from lastword.serve.settings import ServerSettings
from lastword.tasks import BENCHMARKS, load_frozen
from tests.serve.conftest import chunks_of, is_idle, wait_until
from tests.serve.helpers import MARK, TOY, Misbehaving, Poisoned, alone, cut_at_stop, request_of, run, until

WORDS = ("abc", "m", "the cat", "xyz", "lorem ipsum", "q r s", "aa", "zebra")
FIXED = Recipe.coerce(None).with_choices(length="fixed:8")


def settings(**fields):
    return ServerSettings(drain_timeout=5.0, **fields)


def body(prompt="abc", **fields):
    return {"model": "toy", "prompt": prompt, "length": "fixed:8", **fields}


def expected(text, **fields):
    return alone(TOY, request_of(text, FIXED, **fields))


def client_of(url, timeout=60):
    return httpx.AsyncClient(base_url=url, timeout=timeout, limits=httpx.Limits(max_connections=None))


async def complete(client, request):
    """Return the text of a response, streamed or whole; or its error code and Retry-After."""
    response = await client.post("/v1/completions", json=request)
    if response.status_code != 200:
        return response.json()["error"]["code"], response.headers.get("retry-after")
    if not request.get("stream"):
        return response.json()["choices"][0]["text"], None
    chunks = chunks_of(response.text.splitlines())
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]), None


# ---- answers ----


@pytest.mark.full
def test_answers_equal_those_of_the_library_for_200_requests(live):
    """Several recipes, lengths, temperatures and stop strings, streamed or not, 16 clients at once."""
    model, choose = lastword.load("tiny-llada-base", device="cpu"), random.Random(27)
    prompts = [load_frozen("validation", family)[at].prompt for family in BENCHMARKS for at in range(4)]
    server, requests = live(model, name="tiny", settings=settings(max_batch_size=8)), []
    for number in range(200):
        request = {"model": "tiny", "prompt": choose.choice(prompts), "seed": number, "stream": number % 2 == 0}
        request |= {"recipe": choose.choice(["fast", "paper"]), "temperature": choose.choice([None, 0.7])}
        request |= {"length": choose.choice(["fixed:8", "survival:16", "default:24"])}
        requests.append(request | {"stop": choose.choice([[], ["\n", "."]])})

    async def ask():
        semaphore = asyncio.Semaphore(16)

        async def one(client, request):
            async with semaphore:
                return (await complete(client, request))[0]

        async with client_of(server.url, timeout=None) as client:
            return await asyncio.gather(*(one(client, request) for request in requests))

    texts = asyncio.run(ask())
    for names in {(request["recipe"], request["length"], request["temperature"]) for request in requests}:
        rows = [at for at, r in enumerate(requests) if (r["recipe"], r["length"], r["temperature"]) == names]
        recipe = Recipe.named(names[0]).with_choices(length=names[1])
        if names[2] is not None:
            recipe = recipe.with_choices(sampling=Sampling(temperature=names[2]))
        prompts = [requests[at]["prompt"] for at in rows]
        answers = lastword.generate(model, prompts, recipe=recipe, seed=rows)
        assert [texts[at] for at in rows] == [
            cut_at_stop(answer.text, requests[at]["stop"]) for at, answer in zip(rows, answers)
        ]


def test_nothing_of_a_request_is_in_the_response_to_another(live):
    """Each request has its own words in its prompt, its user and a field that is refused."""
    server = live(Poisoned(), settings=settings(max_batch_size=3))
    secrets = [f"{MARK if at == 5 else ''}secret {chr(97 + at) * 3} end" for at in range(12)]

    async def one(client, at):
        request = body(secrets[at], user=f"user-{at:03}", stream=bool(at % 2), seed=at)
        if at % 4 == 3:
            request["recipe"] = secrets[at]  # there is no such recipe
        response = await client.post("/v1/completions", json=request)
        return response.text + str(response.headers)

    async def ask():
        async with client_of(server.url) as client:
            responses = await asyncio.gather(*(one(client, at) for at in range(12)))
            return responses, (await client.get("/metrics")).text + (await client.get("/health")).text

    responses, public = run(ask())
    for at, secret in enumerate(secrets):
        others = [public, *(response for other, response in enumerate(responses) if other != at)]
        words = (secret, f"user-{at:03}", f" {chr(97 + at) * 3} ")
        assert not [word for word in words for response in others if word in response]
    ids = [json.loads(response.split("Headers(")[0])["id"] for response in responses[0:12:4]]
    assert len({*ids}) == len(ids)


def test_three_times_as_many_requests_as_fit(live):
    """Of 24 requests at once for 8 places most are refused at first, and all are answered in the end."""
    server = live(Misbehaving(pause=0.002), settings=settings(max_batch_size=4, max_queue_size=4))
    refused = []

    async def persistent(client, prompt):
        while True:
            text, retry_after = await complete(client, body(prompt))
            if text != "overloaded":
                return text
            refused.append(int(retry_after))
            await asyncio.sleep(0.1)  # sooner than Retry-After says, to save time

    async def ask():
        async with client_of(server.url) as client:
            return await asyncio.gather(*(persistent(client, WORDS[at % len(WORDS)]) for at in range(24)))

    assert run(ask()) == [expected(WORDS[at % len(WORDS)]) for at in range(24)]
    assert len(refused) >= 8
    assert min(refused) >= 1


# ---- clients that disconnect or do not read ----


def raw_request(**fields):
    """Return a request for several long answers of the toy model as bytes."""
    content = json.dumps({"model": "toy", "prompt": "abc", "length": "fixed:64", **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    return f"{head}{len(content)}\r\n\r\n".encode() + content


class LongAnswers(Misbehaving):
    """The toy model with answers of up to 64 tokens, which never end by themselves."""

    default_max_new_tokens = 64

    def __init__(self, pause):
        super().__init__(pause, hazard=0.0)


def add_middleware(app):
    """Put a middleware in front that hides the server's `send` and `receive`."""

    async def dispatch(request, call_next):
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)


@pytest.mark.parametrize("wrap", [None, add_middleware], ids=["plain", "middleware"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_rows_between_two_passes(live, stream, wrap):
    model = LongAnswers(0.02)
    server = live(model, wrap=wrap)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(raw_request(stream=stream, n=4))
        if stream:
            assert b"200 OK" in client.recv(1000)
        else:
            wait_until(lambda: model.calls > 3)
    calls = model.calls
    wait_until(lambda: is_idle(server.engine), 3)
    time.sleep(0.1)
    assert model.calls <= calls + 2 + 4  # of 64
    assert server.engine.state == "ready"


@pytest.mark.parametrize("wrap", [None, add_middleware], ids=["plain", "middleware"])
def test_a_client_that_does_not_read_is_cut_off_and_holds_no_row(live, wrap):
    """Other clients are answered meanwhile."""
    model = LongAnswers(0.002)
    limits = settings(client_timeout=0.5, max_batch_size=2)
    server = live(model, settings=limits, send_buffer=4096, wrap=wrap)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket()) for _ in range(3)]
        for client in silent:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(raw_request(stream=True, diffusing=True, n=16))
        assert httpx.post(f"{server.url}/v1/completions", json=body(), timeout=30).status_code == 200
        wait_until(lambda: is_idle(server.engine), 15)
        assert model.calls < 3 * 16 * 64 / 2  # rows that waited never started
        for client in silent:
            client.settimeout(5)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(65536):
                    received += part
            assert b"200 OK" in received
            assert b"[DONE]" not in received


def test_a_client_that_reads_slowly_gets_everything(live):
    server = live(LongAnswers(0.001), settings=settings(client_timeout=1.0), send_buffer=4096)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(raw_request(stream=True, diffusing=True, n=2))
        received = b""
        while b"[DONE]" not in received:
            part = client.recv(16384)
            assert part, received[-300:]
            received += part
            time.sleep(0.005)


def test_a_body_that_does_not_arrive_times_out(live, toy):
    server = live(toy, settings=settings(client_timeout=0.3))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(raw_request()[:-5])
        client.settimeout(5)
        assert b"408" in client.recv(1000)


def test_clients_that_disconnect_change_no_answer_to_others(live):
    """For a second, half of 16 clients leave after the first bytes, again and again."""
    server = live(Misbehaving(pause=0.002), settings=settings(max_batch_size=4, max_queue_size=1000))
    texts, left, deadline = [], [], time.monotonic() + 1.0

    async def leave(client, prompt):
        while time.monotonic() < deadline:
            async with client.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as response:
                async for _ in response.aiter_lines():
                    left.append(prompt)
                    break

    async def stay(client, prompt):
        while time.monotonic() < deadline:
            texts.append((prompt, (await complete(client, body(prompt)))[0]))

    async def ask():
        async with client_of(server.url) as client:
            await asyncio.gather(*((leave, stay)[at % 2](client, WORDS[at % len(WORDS)]) for at in range(16)))
            await until(lambda: is_idle(server.engine), 2.0)

    run(ask())
    assert len(left) >= 8
    assert len(texts) >= 4
    assert all(text == expected(prompt) for prompt, text in texts)
