"""Two hundred bad requests, each refused with a 4xx in OpenAI's shape that names the field."""

import asyncio
import json

import pytest

COMPLETE, CHAT, LENGTHS = "/v1/completions", "/v1/chat/completions", "/v1/lengths"
NOT_A_NUMBER = ["1", [], {}, True]
HUGE = 10**400


def wrong(field, *values, status=400, param=None, **more):
    """Return requests with each of these wrong values in one field."""
    return [({field: value, **more}, status, param or field) for value in values]


# Fields of a completion by the toy model, added to a valid request.
COMPLETIONS = [
    *wrong("model", None, 3, "", "gpt-4", "TOY", "x" * 2000, ["toy"], status=(400, 404)),
    *wrong("prompt", None, 3, True, {}, [], [[]], [""], "", [[0], []], [None], [0, "a"], ["a", 0], [0.5]),
    *wrong("prompt", [[0], "a"], [[["a"]]], [True], "A1", "abc!", "\u00e9"),
    *wrong("prompt", [-1], [29], [2**70], [27], [[0], [27]]),
    *wrong("prompt", ["a"] * 17, [[0]] * 17, {"text": "a"}),
    ({"prompt": "\ud800"}, 400, None),
    *wrong("n", 0, -1, 1.5, 17, HUGE, *NOT_A_NUMBER),
    *wrong("n", 9, prompt=["a", "b"]),
    *wrong("stream", 1, "true", []),
    *wrong("stream_options", True, [], "usage", stream=True),
    *wrong("stream_options", {"include_usage": True}),
    *wrong("stream_options", {"include_usage": 1}, param="stream_options.include_usage", stream=True),
    *wrong("stream_options", {"usage": True}, param="stream_options.usage", stream=True),
    *wrong("stream_options", {"include_obfuscation": True}, stream=True),
    *wrong("max_tokens", 0, -1, 1.5, HUGE, *NOT_A_NUMBER),
    *wrong("temperature", -1, -1e-9, 1e-7, 1e300, HUGE, *NOT_A_NUMBER),
    *wrong("top_p", 0, -0.5, 1.5, HUGE, *NOT_A_NUMBER, temperature=1),
    *wrong("top_p", 1.5, temperature=0),
    *wrong("top_p", 0.5),  # the recipe draws nothing
    *wrong("seed", 1.5, 2**63, -(2**63) - 1, HUGE, *NOT_A_NUMBER),
    *wrong("seed", 2**63 - 1, n=2),
    *wrong("stop", "", [""], 3, True, {}, ["a"] * 5, ["a", 3], "x" * 2000, [["a"]]),
    *wrong("user", 3, {}, "x" * 2000),
    *wrong("timeout", 0, -1, 601, 1e300, HUGE, *NOT_A_NUMBER),
    *wrong("diffusing", 1, "true", stream=True),
    *wrong("diffusing", True),
    *wrong("recipe", "fst", "", "slow", 3, True, [], {"lenght": "fixed"}, {"length": "nope"}, {"block": 0}),
    *wrong("recipe", {"length": {"name": "fixed", "slots": 65}}, {"cache": "dual"}, {"unmask": 3}),
    *wrong("recipe", {"length": {}}, {"sampling": {"temperature": -1}}, {"length": "fixed:100000000000"}),
    *wrong("recipe", {"length": "calibrated"}, {"length": {"name": "stop-at-end", "length": {"name": "x"}}}),
    *wrong("length", "nope", "", "fixed:0", "fixed:65", "fixed:a", "survival:-1", 3, True, [], {}, {"name": 3}),
    *wrong("length", {"name": "fixed", "slot": 3}, "fixed:5,slots=6", "stop-at-end:(fixed:5", {"slots": 5}),
    *wrong("frequency_penalty", 0.1, -2, "0", False),
    *wrong("presence_penalty", 0.1, True, []),
    *wrong("logit_bias", {"50256": -100}, [1], 3),
    *wrong("best_of", 2, 0, "1", True),
    *wrong("echo", True, 0, "false"),
    *wrong("logprobs", 0, 1, 5, True, "1"),
    *wrong("suffix", "abc", 3),
    *wrong("prompts", "abc"),
    *wrong("tools", []),
    *wrong("top_k", 5),
    *wrong("max_completion_tokens", 5),
    ({"": 1}, 400, None),
    ({"\n": 1}, 400, None),
]  # fmt: skip

HELLO = {"role": "user", "content": "hello"}
# Fields of a chat with a tiny instruct model, added to a valid request.
CHATS = [
    *wrong("messages", None, [], {}, "hello", 3, [3], [None], [[HELLO]]),
    *wrong("messages", [{"role": "user"}], param="messages.0.content"),
    *wrong("messages", [{"content": "hello"}], param="messages.0.role"),
    *wrong("messages", [{"role": "tool", "content": "4"}], param="messages.0.role"),
    *wrong("messages", [{"role": "User", "content": "4"}], param="messages.0.role"),
    *wrong("messages", [HELLO, {"role": "user", "content": None}], param="messages.1.content"),
    *wrong("messages", [{"role": "user", "content": []}], param="messages.0.content"),
    *wrong("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         param="messages.0.content"),
    *wrong("messages", [{"role": "user", "content": [{"type": "text"}]}], param="messages.0.content"),
    *wrong("messages", [{**HELLO, "name": "me"}], param="messages.0.name"),
    *wrong("messages", [{**HELLO, "colour": "red"}], param="messages.0.colour"),
    *wrong("messages", [{**HELLO, "tool_calls": [{}]}], param="messages.0.tool_calls"),
    *wrong("messages", [{"role": "user", "content": "hello " * 1024}]),
    *wrong("max_completion_tokens", 0, "5", max_tokens=None),
    *wrong("max_completion_tokens", 5, max_tokens=6),
    *wrong("logprobs", True, 0, 1),
    *wrong("top_logprobs", 2, -1, False),
    *wrong("tools", [{"type": "function"}], {}, True),
    *wrong("tool_choice", "required", {"type": "function"}, 1),
    *wrong("parallel_tool_calls", 1, "yes"),
    *wrong("functions", [{"name": "f"}]),
    *wrong("function_call", "f", {"name": "f"}),
    *wrong("response_format", {"type": "json_object"}, {"type": "json_schema"}, {}, "text"),
    *wrong("modalities", ["audio"], ["text", "audio"], "text"),
    *wrong("audio", {"voice": "x"}, False),
    *wrong("prediction", {"type": "content"}),
    *wrong("reasoning_effort", "high", 3),
    *wrong("verbosity", "low"),
    *wrong("web_search_options", {}),
    *wrong("store", True),
    *wrong("metadata", {"a": "b"}),
    *wrong("service_tier", "flex"),
    *wrong("length", "fixed:257", "survival:2000", {"name": "fixed", "slots": 1024}),
    *wrong("prompt", "hello"),
]  # fmt: skip

# Fields of a request for lengths to the toy model, added to a valid request.
LENGTH_QUERIES = [
    *wrong("prompt", None, "", [], ["a"], [[0]], 3, "A!", [99], param="prompt"),
    *wrong("messages", [HELLO], prompt="abc"),
    *wrong("messages", [HELLO], prompt=None),  # the toy has no template
    *wrong("limit", 0, 65, 1.5, "5", HUGE, True),
    *wrong("ends", "turn", 3),
    *wrong("interpretation", "nope", 3, {}, "", {"name": "hazard", "x": 1}),
    *wrong("quantiles", 0.5, [0], [1], [1.5], ["0.5"], [0.5] * 17),
    *wrong("model", "gpt", 3, status=(400, 404)),
    *wrong("max_tokens", 5),
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
                response = await opened.post(
                    path, content=content, headers={"content-type": "application/json"}
                )
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
                response = await client.post(
                    path, content=content, headers={"content-type": "application/json"}
                )
                check(response, status, None, content[:60])

    asyncio.run(send())


def test_other_types_paths_and_methods(asgi):
    async def send():
        async with asgi() as client:
            body = json.dumps({"model": "toy", "prompt": "abc"}).encode()
            for kind in (
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data",
                "",
            ):
                response = await client.post(COMPLETE, content=body, headers={"content-type": kind})
                check(response, 415, None, kind)
            charset = {"content-type": "Application/JSON; charset=utf-8"}
            assert (await client.post(COMPLETE, content=body, headers=charset)).status_code == 200
            for path in (
                "/v1",
                "/v1/nope",
                "/v1/completions/",
                "/v1/models/",
                "/v1/models/gpt",
                "/x",
            ):
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
            response = await client.post(
                COMPLETE, content=endless(), headers={"content-type": "application/json"}
            )
            check(response, 413, None, "chunks")

    asyncio.run(send())
    assert sent < 110
