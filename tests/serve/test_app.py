"""The application over an engine that does as it is told: failures, keys, limits, health."""

import asyncio
import json
import logging

import httpx
import pytest
from pydantic import ValidationError

import lastword
from lastword.errors import NumericError, PromptError, SettingError
from lastword.serve.app import create_app, create_server
from lastword.serve.engine import Engine
from lastword.serve.protocol import ChatRequest, LengthsRequest
from lastword.serve.request import (
    DeadlineExceededError,
    DeadlineUnreachableError,
    DecodingFailedError,
    DrainingError,
    EventStream,
    OverloadedError,
    RequestFinished,
    RequestPlanned,
    TextDelta,
)
from lastword.serve.settings import ServerSettings

ASK = {"model": "toy", "prompt": "abc"}
COMPLETE = "/v1/completions"


class Scripted(Engine):
    """Says of every job what it was told to; an error for a script is raised at the door."""

    def __init__(self, model, script, limits=ServerSettings()):
        super().__init__(model, limits)
        self.state, self.script, self.streams = "ready", script, []

    def submit(self, *jobs):
        if isinstance(self.script, Exception):
            raise self.script
        self.streams = [EventStream(job, asyncio.get_running_loop()) for job in jobs]
        for stream in self.streams:
            for event in self.script:
                stream.put(event)
        return self.streams


def ask(engine, *requests, keys=(), **options):
    """The replies to requests (method, path, body), one after the other."""

    async def each():
        app = create_app(engine, name="toy", limits=engine.limits, keys=keys)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.request(m, p, json=b, **options) for m, p, b in requests]

    return asyncio.run(each())


def events(reply):
    """The data of a stream's events."""
    lines = [line for line in reply.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] for line in lines]


@pytest.fixture(scope="module")
def planned():
    return RequestPlanned(None, 5, 5)


@pytest.fixture(scope="module")
def answer(toy):
    made = lastword.generate(toy, "abc", length="fixed:5")
    return RequestFinished(made, "defgh", 5, True, None, 0.5, 0.25)


REFUSALS = [
    (OverloadedError("too much waits", 7), 429, "rate_limit_error", "overloaded"),
    (DeadlineUnreachableError("it takes 9 seconds"), 503, "server_error", "deadline_unreachable"),
    (DrainingError("stopping"), 503, "server_error", "draining"),
    (DeadlineExceededError("too late"), 504, "timeout_error", "deadline_exceeded"),
    (DecodingFailedError("secret inside"), 500, "server_error", "decoding_failed"),
    (PromptError("no such id"), 400, "invalid_request_error", "invalid_request"),
    (NumericError("secret inside"), 500, "server_error", "server_error"),
    (RuntimeError("secret inside"), 500, "server_error", "server_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_the_door", [True, False])
@pytest.mark.parametrize(("error", "status", "kind", "code"), REFUSALS)
def test_what_is_refused_before_the_first_word_has_a_status(
    toy, error, status, kind, code, at_the_door, stream
):
    engine = Scripted(toy, error if at_the_door else [error])
    (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, "stream": stream}))
    assert reply.status_code == status
    told = reply.json()["error"]
    assert (told["type"], told["code"], told["param"]) == (kind, code, None)
    assert "secret" not in reply.text
    assert reply.headers.get("retry-after") == ("7" if status == 429 else None)


@pytest.mark.parametrize(("error", "status", "kind", "code"), REFUSALS)
def test_what_fails_later_is_an_event_and_the_last_one(toy, planned, error, status, kind, code, caplog):
    engine = Scripted(toy, [planned, TextDelta("def"), error])
    with caplog.at_level(logging.ERROR):
        (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, "stream": True, "n": 2}))
    assert reply.status_code == 200
    *_, last = events(reply)
    assert json.loads(last)["error"]["code"] == code
    assert "[DONE]" not in reply.text
    assert "secret" not in reply.text
    assert bool(caplog.records) == (status == 500)  # whoever runs the server hears of it
    assert any(stream.cancelled for stream in engine.streams)  # the other answer is of no use


def test_a_stream_begins_with_the_role_and_ends_with_done(toy, planned, answer):
    engine = Scripted(toy, [planned, TextDelta("de"), TextDelta("fgh"), answer])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, **options}))
    assert reply.headers["content-type"].startswith("text/event-stream")
    first, text, last, usage, done = events(reply)
    assert json.loads(first)["choices"][0]["lastword"]["horizon"] == 5
    assert json.loads(text)["choices"][0]["text"] == "defgh"  # what waits is joined
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert json.loads(last)["choices"][0]["lastword"]["seconds_queued"] == 0.5
    assert json.loads(usage)["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"
    assert not any(stream.cancelled for stream in engine.streams)


def test_a_cut_text_never_says_stop(toy, planned, answer):
    def asked(**more):
        from dataclasses import replace

        engine = Scripted(toy, [planned, replace(answer, **more)])
        (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, "max_tokens": 5}))
        (choice,) = reply.json()["choices"]
        return choice["finish_reason"], choice["lastword"]["ended_by"]

    assert asked(cut=True) == ("length", "cap")
    assert asked(cut=True, tokens=4) == ("length", "canvas")
    assert asked(cut=False) == ("stop", "model")
    assert asked(cut=False, stopped="ij") == ("stop", "stop")


KEYED = [
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/toy", None),
    ("GET", "/v1/models/other", None),
    ("GET", "/metrics", None),
    ("POST", COMPLETE, ASK),
    ("POST", COMPLETE, {"broken": True}),
    ("POST", "/v1/chat/completions", ASK),
    ("POST", "/v1/lengths", {"prompt": "abc"}),
]
WRONG = [
    None, "", "secret", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Bearer secrets", "Basic secret",
    "Bearer Secret", "bearer\tsecret", "Bearer secret, Bearer wrong", "Bearer \u00e9", "Token secret",
]  # fmt: skip


@pytest.mark.parametrize("header", WRONG)
def test_no_one_in_without_the_key(toy, planned, answer, header):
    engine = Scripted(toy, [planned, answer])
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for reply in ask(engine, *KEYED, keys=["secret"], headers=headers):
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "secret" not in reply.text
    assert not engine.streams  # the engine heard of none of them


def test_who_has_the_key_gets_in_and_health_asks_for_none(toy, planned, answer):
    engine = Scripted(toy, [planned, answer])
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} secret"}
        replies = ask(engine, *KEYED[:2], KEYED[3], KEYED[4], keys=["other", "secret"], headers=headers)
        assert [reply.status_code for reply in replies] == [200] * 4
    open_to_all = ask(engine, ("GET", "/health", None), ("GET", "/openapi.json", None), keys=["k"])
    assert [reply.status_code for reply in open_to_all] == [200, 200]


@pytest.mark.parametrize("key", ["clé", "voilà", " secret ", "two words"])
def test_a_key_of_any_letters_opens(toy, planned, answer, key):
    engine = Scripted(toy, [planned, answer])
    headers = {b"authorization": b"Bearer " + key.strip().encode()}
    (reply,) = ask(engine, ("GET", "/v1/models", None), keys=[key], headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("keys", [[""], [" "], "secret", [3]])
def test_a_key_that_would_let_everybody_in_is_refused(toy, keys):
    with pytest.raises((SettingError, TypeError)):
        create_app(Scripted(toy, []), name="toy", keys=keys)


def test_every_locked_path_says_so(toy):
    (reply,) = ask(Scripted(toy, []), ("GET", "/openapi.json", None), keys=["secret"])
    document = reply.json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path != "/health")
            assert "422" not in operation["responses"]


@pytest.mark.parametrize(
    ("state", "status"), [("starting", 503), ("ready", 200), ("draining", 503), ("stopped", 503)]
)
def test_health(toy, state, status):
    engine = Scripted(toy, [])
    engine.state = state
    (reply,) = ask(engine, ("GET", "/health", None))
    assert reply.status_code == status
    told = reply.json()
    assert (told["live"], told["ready"], told["draining"]) == (
        True,
        state == "ready",
        state == "draining",
    )
    assert told["counts"]


def test_lengths_are_the_librarys(asgi, toy):
    async def ask(*bodies):
        async with asgi() as client:
            return [(await client.post("/v1/lengths", json=body)).json() for body in bodies]

    body = {"prompt": "abc", "limit": 20, "reading": "hazard", "quantiles": [0.25, 0.9]}
    told, by_ids = asyncio.run(ask(body, {**body, "prompt": [0, 1, 2]}))
    assert told == by_ids
    lengths = lastword.predict_length(toy, "abc", limit=20, interpretation="hazard")
    assert told["mean"] == pytest.approx(lengths.mean.item())
    assert told["curve"] == pytest.approx(lengths.survival.tolist(), abs=1e-9)
    assert told["tail"] == pytest.approx(lengths.tail.item())
    assert told["quantiles"] == {
        "0.25": int(lengths.quantile(0.25)),
        "0.9": int(lengths.quantile(0.9)),
    }
    assert (told["limit"], told["prompt_tokens"], told["reading"]) == (20, 3, "hazard")


def test_what_an_operator_does_not_allow(toy, planned, answer):
    limits = ServerSettings(horizon=10, prompt=4, answers=2, seconds=3.0, recipes=False)
    engine = Scripted(toy, [planned, answer], limits)

    def refused(**more):
        (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, **more}))
        return reply.json()["error"]["param"] if reply.status_code == 400 else reply.status_code

    assert refused() == 200
    assert refused(recipe="paper") == 200
    assert refused(prompt="abcde") == "prompt"
    assert refused(n=3) == "n"
    assert refused(timeout=4) == "timeout"
    assert refused(recipe={"length": "fixed:5"}) == "recipe"
    assert refused(length="fixed:5") == "length"
    for stream in engine.streams:
        assert lastword.policies.length.wrappers.combined_traits(stream.job.recipe.length).upper_bound <= 10
    engine.limits = ServerSettings(horizon=10)
    assert refused(length="fixed:10") == 200
    assert refused(length="fixed:11") == "length"
    assert refused(recipe={"length": "survival:11"}) == "recipe"


def test_a_job_is_what_was_asked_for(toy, planned, answer):
    engine = Scripted(toy, [planned, answer])

    def job(**more):
        (reply,) = ask(engine, ("POST", COMPLETE, {**ASK, **more}))
        assert reply.status_code == 200, reply.text
        return engine.streams[0].job

    usual = job()
    assert (usual.prompt, usual.seed, usual.most, usual.stop) == ((0, 1, 2), 0, None, ())
    assert (usual.seconds, usual.in_chat, usual.frames) == (600.0, False, False)
    assert job(prompt=[0, 1, 2]).in_chat is None
    assert job(max_tokens=9).most == 9
    assert job(stop="x").stop == ("x",)
    assert job(stop=["x", "y"]).stop == ("x", "y")
    assert job(timeout=5).seconds == 5
    assert job(stream=True, diffusing=True).frames
    assert job(seed=-3).seed == -3
    warm = {"recipe": {"sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5}}}
    own = job(**warm).recipe.sampling
    assert (own.temperature, own.top_p, own.top_k) == (0.7, 0.9, 5)  # left out, it is the recipe's
    assert job(**warm, temperature=0).recipe.sampling == lastword.Sampling()
    assert job(**warm, top_p=1).recipe.sampling == own
    assert job(temperature=0.5, top_p=0.8).recipe.sampling.top_p == 0.8
    assert job(temperature=0, top_p=0.8).recipe.sampling == lastword.Sampling()
    assert job(recipe="paper").recipe.label() == "survival:64"
    assert job(length="fixed:7").recipe.label() == "fixed:7"
    assert job(length={"name": "fixed", "slots": 7}).recipe.label() == "fixed:7"


def test_the_page_needs_no_key(toy, monkeypatch):
    monkeypatch.setattr("lastword.serve.app.render_page", lambda recipe: "<p>hello")
    (reply,) = ask(Scripted(toy, []), ("GET", "/", None), keys=["secret"])
    assert (reply.status_code, reply.text) == (200, "<p>hello")
    assert reply.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("kind", [ChatRequest, LengthsRequest])
def test_of_many_wrong_messages_one_is_looked_for(kind):
    """Making a list of all of them would hold up everybody's stream for seconds."""
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate({"model": "toy", "messages": [{}] * 1_000})
    assert wrong.value.error_count() < 10


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("", 400),
    ],
)
def test_a_server_on_loopback_is_asked_by_its_own_name(host, status):
    """A page of another site, whose name points here, is not let in."""
    app = create_server(lastword.load("toy"), name="toy", port=0).config.app

    async def asked():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/v1/models", headers={"Host": host})

    reply = asyncio.run(asked())
    assert reply.status_code == status
    assert status == 200 or "not called" in reply.json()["error"]["message"]
