"""Two hundred bad requests, each refused with a 4xx in OpenAI's shape that names the field."""

import asyncio
import json
import time

import httpx
import pytest

from lastword.serve import app as app_module

COMPLETE, CHAT, LENGTHS = "/v1/completions", "/v1/chat/completions", "/v1/lengths"
NOT_A_NUMBER = ["1", [], {}, True]
HUGE = 10**400


def bad(field, *values, status=400, param=None, **more):
    """Return requests with each of these wrong values in one field."""
    return [({field: value, **more}, status, param or field) for value in values]


# Fields of a completion by the toy model, added to a valid request.
COMPLETIONS = [
    *bad("model", None, 3, "", "gpt-4", "TOY", "x" * 2000, ["toy"], status=(400, 404)),
    *bad("prompt", None, 3, True, {}, [], [[]], [""], "", [[0], []], [None], [0, "a"], ["a", 0], [0.5]),
    *bad("prompt", [[0], "a"], [[["a"]]], [True], "A1", "abc!", "\u00e9"),
    *bad("prompt", [-1], [29], [2**70], [27], [[0], [27]]),
    *bad("prompt", ["a"] * 17, [[0]] * 17, {"text": "a"}),
    ({"prompt": "\ud800"}, 400, None),
    *bad("n", 0, -1, 1.5, 17, HUGE, *NOT_A_NUMBER),
    *bad("n", 9, prompt=["a", "b"]),
    *bad("stream", 1, "true", []),
    *bad("stream_options", True, [], "usage", stream=True),
    *bad("stream_options", {"include_usage": True}),
    *bad("stream_options", {"include_usage": 1}, param="stream_options.include_usage", stream=True),
    *bad("stream_options", {"usage": True}, param="stream_options.usage", stream=True),
    *bad("stream_options", {"include_obfuscation": True}, stream=True),
    *bad("max_tokens", 0, -1, 1.5, HUGE, *NOT_A_NUMBER),
    *bad("temperature", -1, -1e-9, 1e-7, 1e300, HUGE, *NOT_A_NUMBER),
    *bad("top_p", 0, -0.5, 1.5, HUGE, *NOT_A_NUMBER, temperature=1),
    *bad("top_p", 1.5, temperature=0),
    *bad("top_k", 0, -1, 1.5, HUGE, *NOT_A_NUMBER, temperature=1),
    *bad("top_k", 0, temperature=0),
    *bad("seed", 1.5, 9 * 10**18 + 1, -9 * 10**18 - 1, HUGE, *NOT_A_NUMBER),
    *bad("stop", "", [""], 3, True, {}, ["a"] * 5, ["a", 3], "x" * 2000, [["a"]]),
    *bad("user", 3, {}, "x" * 2000),
    *bad("timeout", 0, -1, 601, 1e300, HUGE, *NOT_A_NUMBER),
    *bad("diffusing", 1, "true", stream=True),
    *bad("diffusing", True),
    *bad("recipe", "fst", "", "slow", 3, True, [], {"lenght": "fixed"}, {"length": "nope"}, {"block": 0}),
    *bad("recipe", {"length": {"name": "fixed", "slots": 65}}, {"cache": "dual"}, {"unmask": 3}),
    *bad("recipe", {"length": {}}, {"sampling": {"temperature": -1}}, {"length": "fixed:100000000000"}),
    *bad("recipe", {"length": "calibrated"}, {"length": {"name": "stop-at-end", "length": {"name": "x"}}}),
    *bad("length", "nope", "", "fixed:0", "fixed:65", "fixed:a", "survival:-1", 3, True, [], {}, {"name": 3}),
    *bad("length", {"name": "fixed", "slot": 3}, "fixed:5,slots=6", "stop-at-end:(fixed:5", {"slots": 5}),
    *bad("frequency_penalty", 0.1, -2, "0", False),
    *bad("presence_penalty", 0.1, True, []),
    *bad("logit_bias", {"50256": -100}, [1], 3),
    *bad("best_of", 2, 0, "1", True),
    *bad("echo", True, 0, "false"),
    *bad("logprobs", 2, 5, -1, 0.5, True, "1", [], {}),
    *bad("suffix", "abc", 3),
    *bad("prompts", "abc"),
    *bad("tools", []),
    *bad("max_completion_tokens", 5),
    ({"": 1}, 400, None),
    ({"\n": 1}, 400, None),
]  # fmt: skip

HELLO = {"role": "user", "content": "hello"}
# Fields of a chat with a tiny instruct model, added to a valid request.
CHATS = [
    *bad("messages", None, [], {}, "hello", 3, [3], [None], [[HELLO]]),
    *bad("messages", [{"role": "user"}], param="messages.0.content"),
    *bad("messages", [{"content": "hello"}], param="messages.0.role"),
    *bad("messages", [{"role": "tool", "content": "4"}], param="messages.0.role"),
    *bad("messages", [{"role": "User", "content": "4"}], param="messages.0.role"),
    *bad("messages", [HELLO, {"role": "user", "content": None}], param="messages.1.content"),
    *bad("messages", [{"role": "user", "content": []}], param="messages.0.content"),
    *bad("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         param="messages.0.content"),
    *bad("messages", [{"role": "user", "content": [{"type": "text"}]}], param="messages.0.content"),
    *bad("messages", [{**HELLO, "name": "me"}], param="messages.0.name"),
    *bad("messages", [{**HELLO, "colour": "red"}], param="messages.0.colour"),
    *bad("messages", [{**HELLO, "tool_calls": [{}]}], param="messages.0.tool_calls"),
    *bad("messages", [{"role": "user", "content": "hello " * 1024}]),
    *bad("max_completion_tokens", 0, "5", max_tokens=None),
    *bad("max_completion_tokens", 5, max_tokens=6),
    *bad("logprobs", 0, 1, "true", []),
    *bad("top_logprobs", 2, 1, -1, 0.5, False, logprobs=True),
    *bad("tools", [{"type": "function"}], {}, True),
    *bad("tool_choice", "required", {"type": "function"}, 1),
    *bad("parallel_tool_calls", 1, "yes"),
    *bad("functions", [{"name": "f"}]),
    *bad("function_call", "f", {"name": "f"}),
    *bad("response_format", {"type": "json_object"}, {"type": "json_schema"}, {}, "text"),
    *bad("modalities", ["audio"], ["text", "audio"], "text"),
    *bad("audio", {"voice": "x"}, False),
    *bad("prediction", {"type": "content"}),
    *bad("reasoning_effort", "high", 3),
    *bad("verbosity", "low"),
    *bad("web_search_options", {}),
    *bad("store", True),
    *bad("metadata", {"a": 1}, {"a": None}, {"a" * 65: "b"}, {"a": "b" * 513}, 3),
    *bad("metadata", dict.fromkeys("abcdefghijklmnopq", "b")),
    *bad("service_tier", "flex"),
    *bad("length", "fixed:257", "survival:2000", {"name": "fixed", "slots": 1024}),
    *bad("prompt", "hello"),
]  # fmt: skip

# Fields of a request for lengths to the toy model, added to a valid request.
LENGTH_QUERIES = [
    *bad("prompt", None, "", [], ["a"], [[0]], 3, "A!", [99], param="prompt"),
    *bad("messages", [HELLO], prompt="abc"),
    *bad("messages", [HELLO], prompt=None),  # the toy has no template
    *bad("limit", 0, 65, 1.5, "5", HUGE, True),
    *bad("ends", "turn", 3),
    *bad("interpretation", "nope", 3, {}, "", {"name": "hazard", "x": 1}),
    *bad("quantiles", 0.5, [0], [1], [1.5], ["0.5"], [0.5] * 17),
    *bad("model", "gpt", 3, status=(400, 404)),
    *bad("max_tokens", 5),
]

# Bodies that are not JSON objects or too large.
BODIES = [
    (b"", 400), (b"{", 400), (b"[]", 400), (b"3", 400), (b"null", 400), (b'"abc"', 400), (b"{'a': 1}", 400),
    (b'{"model": "toy", "prompt": "abc", "prompt": "abc"}', 400), (b"\xff\xfe{}", 400), (b"\x00", 400),
    (b'{"model": "toy", "prompt": "abc", "temperature": NaN}', 400),
    (b'{"model": "toy", "prompt": "abc", "temperature": Infinity}', 400),
    (b'{"model": "toy", "prompt": "abc", "temperature": 1e999}', 400),
    (b'{"model": "toy", "prompt": "abc", "seed": ' + b"9" * 5000 + b"}", 400),
    (b'{"model": "toy", "prompt": "abc"} {}', 400), (b'{"model": "toy", "prompt": "\\ud800"}', 400),
    (b"[" * 100_000, 400), (b'{"a":' * 50_000, 400), (b" " * 1_000_001, 413), (b"a" * 3_000_000, 413),
]  # fmt: skip


def test_there_are_at_least_two_hundred():
    assert len(COMPLETIONS) + len(CHATS) + len(LENGTH_QUERIES) + len(BODIES) >= 200


def check(response, status, param, sent):
    """Check that the response is a 4xx in OpenAI's shape that names the field and shows no internals."""
    allowed = status if isinstance(status, tuple) else (status,)
    assert response.status_code in allowed, (sent, response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert "Traceback" not in response.text
    assert "pydantic" not in response.text
    if param is not None:
        assert error["param"] is not None, (sent, error)
        assert error["param"] == param or error["param"].startswith(f"{param}."), (sent, error)


def run_all(client, path, valid, cases):
    async def send():
        async with client as opened:
            for fields, status, param in cases:
                body = {
                    name: value
                    for name, value in {**valid, **fields}.items()
                    if value is not None or name not in valid  # None takes a field away
                }
                content = json.dumps(body).encode(errors="surrogatepass")
                response = await opened.post(path, content=content, headers={"content-type": "application/json"})
                check(response, status, param, fields)

    asyncio.run(send())


def test_completions(asgi):
    run_all(asgi(), COMPLETE, {"model": "toy", "prompt": "abc"}, COMPLETIONS)


def test_chats(asgi, instruct):
    run_all(asgi(instruct), CHAT, {"model": "toy", "messages": [HELLO]}, CHATS)


def test_lengths(asgi):
    run_all(asgi(), LENGTHS, {"prompt": "abc"}, LENGTH_QUERIES)


@pytest.mark.parametrize("path", [COMPLETE, CHAT, LENGTHS])
def test_bodies(asgi, path):
    async def send():
        async with asgi() as client:
            for content, status in BODIES:
                response = await client.post(path, content=content, headers={"content-type": "application/json"})
                check(response, status, None, content[:60])

    asyncio.run(send())


def test_other_types_paths_and_methods(asgi):
    async def send():
        async with asgi() as client:
            body = json.dumps({"model": "toy", "prompt": "abc"}).encode()
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
                response = await client.post(COMPLETE, content=body, headers={"content-type": kind})
                check(response, 415, None, kind)
            charset = {"content-type": "Application/JSON; charset=utf-8"}
            assert (await client.post(COMPLETE, content=body, headers=charset)).status_code == 200
            for path in ("/v1", "/v1/nope", "/v1/completions/", "/v1/models/", "/v1/models/gpt", "/x"):
                check(await client.get(path), 404, None, path)
            for method, path in [("GET", COMPLETE), ("DELETE", "/v1/models"), ("POST", "/health")]:
                response = await client.request(method, path)
                check(response, 405, None, path)
                assert response.headers["allow"]

    asyncio.run(send())


def test_a_body_without_a_length_is_read_no_further_than_allowed(asgi):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 10_000

    async def send():
        async with asgi() as client:
            response = await client.post(COMPLETE, content=endless(), headers={"content-type": "application/json"})
            check(response, 413, None, "chunks")

    asyncio.run(send())
    assert sent < 110


MANY = app_module.MAX_JSON_ITEMS + 1


@pytest.mark.parametrize("prompt", [[[1]] * MANY, [{}] * MANY, {str(number): 1 for number in range(MANY)}])
def test_a_body_with_too_many_parts_is_not_parsed(live_toy, prompt, monkeypatch):
    monkeypatch.setattr(app_module, "parse_json_object", None)
    response = httpx.post(live_toy.url + COMPLETE, json={"model": "toy", "prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
    assert "more than 20000 arrays, objects and fields" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["[" * MANY, '{"a": ' * MANY, ':\\"' * MANY, "[" * MANY + "\\"])
def test_brackets_in_text_do_not_count(live_toy, text):
    response = httpx.post(live_toy.url + COMPLETE, json={"model": "toy", "prompt": text})
    assert response.json()["error"]["message"].startswith("the toy model has tokens for letters")


@pytest.mark.parametrize(
    "text", [b'"' * 10**6, b'"' + b"\\" * 10**6, b'"\\' * 10**6, b'"' + b"a" * 10**6, b'\\"[' * 10**6]
)
def test_strings_are_removed_in_linear_time(text):
    start = time.process_time()
    app_module.JSON_STRING.sub(b"", text)
    assert time.process_time() - start < 2
