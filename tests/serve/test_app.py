"""The application over a scripted engine: errors, streams, keys, hosts and health."""

import asyncio
import json
import logging
from dataclasses import replace

import httpx
import pytest
import torch
from pydantic import ValidationError

import lastword
from lastword.api import Finish
from lastword.errors import NumericError, PromptError, SettingError
from lastword.policies.length.policy import Plan
from lastword.serve import app as app_module
from lastword.serve.app import create_app, create_server
from lastword.serve.engine import ServerEngine
from lastword.serve.protocol import ChatRequest, LengthsRequest
from lastword.serve.request import EventStream, RequestFinished, ServerError
from lastword.serve.serving import ModelService

ASK = {"model": "toy", "prompt": "abc"}
COMPLETE = "/v1/completions"
PLANNED = Plan(torch.tensor([5]))


class Scripted(ServerEngine):
    """Emits the events of a script for each answer; an exception is raised by `submit`."""

    def __init__(self, model, script):
        super().__init__(model)
        self.script, self.streams, self.state = script, [], "ready"

    def submit(self, requests):
        if isinstance(self.script, Exception):
            raise self.script
        stream = EventStream(len(requests))
        for index in range(len(requests)):
            for event in self.script:
                stream.put(index, event)
        self.streams.append(stream)
        return stream


def ask(engine, *requests, keys=(), hosts=(), **options):
    """Return the responses to requests (method, path, body), one after the other."""

    async def each():
        app = create_app(ModelService(engine, "toy"), name="toy", keys=keys, hosts=hosts)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.request(method, path, json=body, **options) for method, path, body in requests]

    return asyncio.run(each())


def events(response):
    """Return the data of all events."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] for line in lines]


@pytest.fixture(scope="module")
def answer(toy):
    generation = lastword.generate(toy, "abc", length="fixed:5")
    return RequestFinished(generation, 0.5, 0.25)


def with_generation(answer, **fields):
    return replace(answer, generation=replace(answer.generation, **fields))


@pytest.mark.parametrize("stream", [False, True])
def test_half_of_a_surrogate_pair_is_replaced(toy, answer, stream):
    engine = Scripted(toy, [PLANNED, with_generation(answer, text="half \ud83d")])
    (response,) = ask(engine, ("POST", COMPLETE, {**ASK, "stream": stream}))
    assert response.status_code == 200
    if not stream:
        assert response.json()["choices"][0]["text"] == "half ?"


REFUSALS = [
    (ServerError("full", "overloaded", retry_after=7), 429, "rate_limit_error", "overloaded"),
    (ServerError("9 seconds", "deadline_unreachable"), 503, "server_error", "deadline_unreachable"),
    (ServerError("stopping", "draining"), 503, "server_error", "draining"),
    (ServerError("too late", "deadline_exceeded"), 504, "timeout_error", "deadline_exceeded"),
    (ServerError("a fault", "decoding_failed"), 500, "server_error", "decoding_failed"),
    (PromptError("no such id"), 400, "invalid_request_error", "invalid_request"),
    (NumericError("secret inside"), 500, "server_error", "server_error"),
    (RuntimeError("secret inside"), 500, "server_error", "server_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by_submit", [True, False])
@pytest.mark.parametrize(("error", "status", "kind", "code"), REFUSALS)
def test_an_error_before_the_first_chunk_has_a_status(toy, error, status, kind, code, by_submit, stream):
    engine = Scripted(toy, error if by_submit else [error])
    (response,) = ask(engine, ("POST", COMPLETE, {**ASK, "stream": stream}))
    assert response.status_code == status
    body = response.json()["error"]
    assert (body["type"], body["code"], body["param"]) == (kind, code, None)
    assert "secret" not in response.text
    assert response.headers.get("retry-after") == ("7" if status == 429 else None)


@pytest.mark.parametrize(("error", "status", "kind", "code"), REFUSALS)
def test_an_error_in_a_stream_is_its_last_event(toy, error, status, kind, code, caplog):
    engine = Scripted(toy, [PLANNED, "def", error])
    with caplog.at_level(logging.ERROR):
        (response,) = ask(engine, ("POST", COMPLETE, {**ASK, "stream": True, "n": 2}))
    assert response.status_code == 200
    *_, last = events(response)
    assert json.loads(last)["error"]["code"] == code
    assert "[DONE]" not in response.text
    assert "secret" not in response.text
    assert bool(caplog.records) == (status == 500)
    assert engine.streams[0].cancelled  # the other answer is not needed any more


def test_a_stream_has_the_prediction_first_and_ends_with_done(toy, answer):
    engine = Scripted(toy, [PLANNED, "de", "fgh", answer])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    (response,) = ask(engine, ("POST", COMPLETE, {**ASK, **options}))
    assert response.headers["content-type"].startswith("text/event-stream")
    first, text, last, usage, done = events(response)
    assert json.loads(first)["choices"][0]["lastword"]["horizon"] == 5
    assert json.loads(text)["choices"][0]["text"] == "defgh"  # unread texts are joined
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert json.loads(last)["choices"][0]["lastword"]["seconds_queued"] == 0.5
    assert json.loads(usage)["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"


def test_a_silent_stream_has_comments(toy, answer, monkeypatch):
    """Proxies close silent connections, and clients ignore comments."""
    monkeypatch.setattr(app_module, "PING_SECONDS", 0.05)

    class Slow(Scripted):
        def submit(self, requests):
            stream = super().submit(requests)
            asyncio.get_running_loop().call_later(0.4, stream.put, 0, answer)
            return stream

    (response,) = ask(Slow(toy, [PLANNED]), ("POST", COMPLETE, {**ASK, "stream": True}))
    blocks = [block for block in response.text.split("\n\n") if block]
    comments = [block for block in blocks if block.startswith(":")]
    assert 2 <= len(comments) <= 10
    assert blocks[-1] == "data: [DONE]"


def test_a_truncated_text_never_has_the_reason_stop(toy, answer):
    def ended(**fields):
        engine = Scripted(toy, [PLANNED, with_generation(answer, **fields)])
        (response,) = ask(engine, ("POST", COMPLETE, {**ASK, "max_tokens": 5}))
        (choice,) = response.json()["choices"]
        return choice["finish_reason"], choice["lastword"]["ended_by"]

    assert ended() == ("length", "cap")
    assert ended(tokens=[0] * 4) == ("length", "canvas")
    assert ended(finish=Finish.MASKS_LEFT, tokens=[0] * 4) == ("length", "canvas")
    assert ended(finish=Finish.ENDED) == ("stop", "model")
    assert ended(finish=Finish.STOPPED, stop_reason="ij") == ("stop", "stop")


def test_metrics_do_not_fail_with_the_description_of_the_model(toy, monkeypatch):
    async def served_model(service):
        raise RuntimeError("of a test")

    monkeypatch.setattr(ModelService, "served_model", served_model)
    (response,) = ask(Scripted(toy, []), ("GET", "/metrics", None))
    assert response.status_code == 200
    assert "lastword:num_requests_running" in response.text


KEYED = [
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("POST", COMPLETE, ASK),
    ("GET", "/v1/models/toy", None),
    ("GET", "/v1/models/other", None),
    ("POST", COMPLETE, {"broken": True}),
    ("POST", "/v1/chat/completions", ASK),
    ("POST", "/v1/lengths", {"prompt": "abc"}),
    ("GET", "/nowhere", None),
]
WRONG_KEYS = [
    None, "", "secret", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Bearer secrets", "Basic secret",
    "Bearer Secret", "bearer\tsecret", "Bearer secret, Bearer wrong", "Bearer \u00e9", "Token secret",
]  # fmt: skip


@pytest.mark.parametrize("header", WRONG_KEYS)
def test_a_request_without_the_key_is_refused(toy, answer, header):
    engine = Scripted(toy, [PLANNED, answer])
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for response in ask(engine, *KEYED, keys=["secret"], headers=headers):
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "secret" not in response.text
    assert not engine.streams


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
@pytest.mark.parametrize("key", ["secret", "clé", "voilà", " secret ", "two words"])
def test_a_request_with_a_key_is_answered(toy, answer, key, scheme):
    headers = {b"authorization": f"{scheme} {key.strip()}".encode()}
    engine = Scripted(toy, [PLANNED, answer])
    responses = ask(engine, *KEYED[:3], keys=["other", key], headers=headers)
    assert [response.status_code for response in responses] == [200] * 3


def test_page_health_and_description_need_no_key(toy):
    paths = [("GET", path, None) for path in ("/health", "/openapi.json", "/")]
    health, description, page = ask(Scripted(toy, []), *paths, keys=["secret"])
    assert health.json()["ready"]
    assert page.headers["content-type"].startswith("text/html")
    assert "<html" in page.text
    for path, operations in description.json()["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in ("/live", "/ready", "/health"))
            assert "422" not in operation["responses"]


@pytest.mark.parametrize("keys", [[""], [" "], "secret", [3]])
def test_an_empty_key_is_refused(toy, keys):
    with pytest.raises((SettingError, TypeError)):
        create_app(ModelService(Scripted(toy, []), "toy"), name="toy", keys=keys)


@pytest.mark.parametrize(("state", "status"), [("starting", 503), ("ready", 200), ("draining", 503), ("stopped", 503)])
def test_health(toy, state, status):
    engine = Scripted(toy, [])
    engine.state = state
    (response,) = ask(engine, ("GET", "/health", None))
    body = response.json()
    assert (response.status_code, body["state"]) == (status, state)
    assert (body["live"], body["ready"], body["draining"]) == (True, state == "ready", state == "draining")
    assert body["counts"].keys() == {"working", "waiting"}


def test_lengths_equal_those_of_the_library(asgi, toy):
    async def lengths(*bodies):
        async with asgi() as client:
            return [(await client.post("/v1/lengths", json=body)).json() for body in bodies]

    body = {"prompt": "abc", "limit": 20, "interpretation": "hazard", "quantiles": [0.25, 0.9]}
    by_text, by_ids = asyncio.run(lengths(body, {**body, "prompt": [0, 1, 2]}))
    assert by_text == by_ids
    expected = lastword.predict_length(toy, "abc", limit=20, interpretation="hazard")
    assert by_text["mean"] == pytest.approx(expected.mean.item())
    assert by_text["curve"] == pytest.approx(expected.survival.tolist(), abs=1e-9)
    assert by_text["tail"] == pytest.approx(expected.tail.item())
    assert by_text["quantiles"] == {str(q): int(expected.quantile(q)) for q in (0.25, 0.9)}
    assert (by_text["limit"], by_text["prompt_tokens"], by_text["interpretation"]) == (20, 3, "hazard")


def test_the_model_card_has_the_default_recipe(asgi):
    async def card():
        async with asgi() as client:
            listed = (await client.get("/v1/models")).json()["data"]
            answer = (await client.post(COMPLETE, json=ASK)).json()
            return listed, (await client.get("/v1/models/toy")).json(), answer

    (listed,), single, answer = asyncio.run(card())
    assert listed == single
    assert listed["lastword"]["default_max_new_tokens"] == 64
    assert listed["lastword"]["recipe"] == answer["lastword"]["recipe"]
    assert listed["lastword"]["single_turn"] is False


def test_the_model_card_says_whether_the_model_knows_one_question(live_instruct):
    (card,) = httpx.get(f"{live_instruct.url}/v1/models").json()["data"]
    assert card["lastword"]["single_turn"] is True


@pytest.mark.parametrize("kind", [ChatRequest, LengthsRequest])
def test_validation_of_a_conversation_stops_at_the_first_error(kind):
    """A list of a million errors would delay all streams."""
    with pytest.raises(ValidationError) as invalid:
        kind.model_validate({"model": "toy", "messages": [{}] * 1_000})
    assert invalid.value.error_count() < 10


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 400), ("", 400)],
)
def test_a_server_on_loopback_accepts_local_host_names_only(toy, host, status):
    """A page of another site may point its own name to 127.0.0.1."""
    app = create_server(toy, name="toy", port=0).config.app

    async def get():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get("/v1/models", headers={"Host": host})

    response = asyncio.run(get())
    assert response.status_code == status
