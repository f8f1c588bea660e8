"""Two hundred bad requests, each refused with a 4xx in OpenAI's shape that names the field."""

import asyncio
import json

import pytest

COMPLETE, CHAT, LENGTHS = "/v1/completions", "/v1/chat/completions", "/v1/lengths"
NOT_A_NUMBER = ["1", [], {}, True]
HUGE = 10**400


def one(field, *values, status=400, param=None, **more):
    """Requests with one field that is wrong, in each of these ways."""
    return [({field: value, **more}, status, param or field) for value in values]


# Fields of a completion by the toy; without a prompt it is "abc", without a model the one there is.
ASKED = [
    *one("model", None, 3, "", "gpt-4", "TOY", "x" * 2000, ["toy"], status=(400, 404)),
    *one("prompt", None, 3, True, {}, [], [[]], [""], "", [[0], []], [None], [0, "a"], ["a", 0], [0.5]),
    *one("prompt", [[0], "a"], [[["a"]]], [True], "A1", "abc!", "\u00e9"),
    *one("prompt", [-1], [29], [2**70], [27], [[0], [27]]),
    *one("prompt", ["a"] * 17, [[0]] * 17, {"text": "a"}),
    ({"prompt": "\ud800"}, 400, None),
    *one("n", 0, -1, 1.5, 17, HUGE, *NOT_A_NUMBER),
    *one("n", 9, prompt=["a", "b"]),
    *one("stream", 1, "true", []),
    *one("stream_options", True, [], "usage", stream=True),
    *one("stream_options", {"include_usage": True}),
    *one("stream_options", {"include_usage": 1}, param="stream_options.include_usage", stream=True),
    *one("stream_options", {"usage": True}, param="stream_options.usage", stream=True),
    *one("stream_options", {"include_obfuscation": True}, stream=True),
    *one("max_tokens", 0, -1, 1.5, HUGE, *NOT_A_NUMBER),
    *one("temperature", -1, -1e-9, 1e-7, 1e300, HUGE, *NOT_A_NUMBER),
    *one("top_p", 0, -0.5, 1.5, HUGE, *NOT_A_NUMBER, temperature=1),
    *one("top_p", 1.5, temperature=0),
    *one("top_p", 0.5),  # the recipe draws nothing
    *one("seed", 1.5, 2**63, -(2**63) - 1, HUGE, *NOT_A_NUMBER),
    *one("seed", 2**63 - 1, n=2),
    *one("stop", "", [""], 3, True, {}, ["a"] * 5, ["a", 3], "x" * 2000, [["a"]]),
    *one("user", 3, {}, "x" * 2000),
    *one("timeout", 0, -1, 601, 1e300, HUGE, *NOT_A_NUMBER),
    *one("diffusing", 1, "true", stream=True),
    *one("diffusing", True),
    *one("recipe", "fst", "", "slow", 3, True, [], {"lenght": "fixed"}, {"length": "nope"}, {"block": 0}),
    *one("recipe", {"length": {"name": "fixed", "slots": 65}}, {"cache": "dual"}, {"unmask": 3}),
    *one("recipe", {"length": {}}, {"sampling": {"temperature": -1}}, {"length": "fixed:100000000000"}),
    *one("recipe", {"length": "calibrated"}, {"length": {"name": "stop-at-end", "length": {"name": "x"}}}),
    *one("length", "nope", "", "fixed:0", "fixed:65", "fixed:a", "survival:-1", 3, True, [], {}, {"name": 3}),
    *one("length", {"name": "fixed", "slot": 3}, "fixed:5,slots=6", "stop-at-end:(fixed:5", {"slots": 5}),
    *one("frequency_penalty", 0.1, -2, "0", False),
    *one("presence_penalty", 0.1, True, []),
    *one("logit_bias", {"50256": -100}, [1], 3),
    *one("best_of", 2, 0, "1", True),
    *one("echo", True, 0, "false"),
    *one("logprobs", 0, 1, 5, True, "1"),
    *one("suffix", "abc", 3),
    *one("prompts", "abc"),
    *one("tools", []),
    *one("top_k", 5),
    *one("max_completion_tokens", 5),
    ({"": 1}, 400, None),
    ({"\n": 1}, 400, None),
]  # fmt: skip

HELLO = {"role": "user", "content": "hello"}
# Fields of a chat with a tiny instruct model.
SAID = [
    *one("messages", None, [], {}, "hello", 3, [3], [None], [[HELLO]]),
    *one("messages", [{"role": "user"}], param="messages.0.content"),
    *one("messages", [{"content": "hello"}], param="messages.0.role"),
    *one("messages", [{"role": "tool", "content": "4"}], param="messages.0.role"),
    *one("messages", [{"role": "User", "content": "4"}], param="messages.0.role"),
    *one("messages", [HELLO, {"role": "user", "content": None}], param="messages.1.content"),
    *one("messages", [{"role": "user", "content": []}], param="messages.0.content"),
    *one("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         param="messages.0.content"),
    *one("messages", [{"role": "user", "content": [{"type": "text"}]}], param="messages.0.content"),
    *one("messages", [{**HELLO, "name": "me"}], param="messages.0.name"),
    *one("messages", [{**HELLO, "colour": "red"}], param="messages.0.colour"),
    *one("messages", [{**HELLO, "tool_calls": [{}]}], param="messages.0.tool_calls"),
    *one("messages", [{"role": "user", "content": "hello " * 1024}]),
    *one("max_completion_tokens", 0, "5", max_tokens=None),
    *one("max_completion_tokens", 5, max_tokens=6),
    *one("logprobs", True, 0, 1),
    *one("top_logprobs", 2, -1, False),
    *one("tools", [{"type": "function"}], {}, True),
    *one("tool_choice", "required", {"type": "function"}, 1),
    *one("parallel_tool_calls", 1, "yes"),
    *one("functions", [{"name": "f"}]),
    *one("function_call", "f", {"name": "f"}),
    *one("response_format", {"type": "json_object"}, {"type": "json_schema"}, {}, "text"),
    *one("modalities", ["audio"], ["text", "audio"], "text"),
    *one("audio", {"voice": "x"}, False),
    *one("prediction", {"type": "content"}),
    *one("reasoning_effort", "high", 3),
    *one("verbosity", "low"),
    *one("web_search_options", {}),
    *one("store", True),
    *one("metadata", {"a": "b"}),
    *one("service_tier", "flex"),
    *one("length", "fixed:257", "survival:2000", {"name": "fixed", "slots": 1024}),
    *one("prompt", "hello"),
]  # fmt: skip

# Fields of a question about lengths, to the toy.
ASKED_LENGTHS = [
    *one("prompt", None, "", [], ["a"], [[0]], 3, "A!", [99], param="prompt"),
    *one("messages", [HELLO], prompt="abc"),
    *one("messages", [HELLO], prompt=None),  # the toy has no template
    *one("limit", 0, 65, 1.5, "5", HUGE, True),
    *one("ends", "turn", 3),
    *one("interpretation", "nope", 3, {}, "", {"name": "hazard", "x": 1}),
    *one("quantiles", 0.5, [0], [1], [1.5], ["0.5"], [0.5] * 17),
    *one("model", "gpt", 3, status=(400, 404)),
    *one("max_tokens", 5),
]

# Bodies that are no request at all.
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
    assert len(ASKED) + len(SAID) + len(ASKED_LENGTHS) + len(BODIES) >= 200


def check(reply, status, param, sent):
    """A 4xx in OpenAI's shape, about the field, and no word of how we are made."""
    allowed = status if isinstance(status, tuple) else (status,)
    assert reply.status_code in allowed, (sent, reply.status_code, reply.text)
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json()) == {"error"}
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert "Traceback" not in reply.text
    assert "pydantic" not in reply.text
    if param is not None:
        assert error["param"] is not None, (sent, error)
        assert error["param"] == param or error["param"].startswith(f"{param}."), (sent, error)


def run_all(client, path, usual, cases):
    async def ask():
        async with client as opened:
            for fields, status, param in cases:
                body = {
                    name: value
                    for name, value in {**usual, **fields}.items()
                    if value is not None or name not in usual  # None takes a field away
                }
                content = json.dumps(body).encode(errors="surrogatepass")
                reply = await opened.post(path, content=content, headers={"content-type": "application/json"})
                check(reply, status, param, fields)

    asyncio.run(ask())


def test_completions(asgi):
    run_all(asgi(), COMPLETE, {"model": "toy", "prompt": "abc"}, ASKED)


def test_chats(asgi, instruct):
    run_all(asgi(instruct), CHAT, {"model": "toy", "messages": [HELLO]}, SAID)


def test_lengths(asgi):
    run_all(asgi(), LENGTHS, {"prompt": "abc"}, ASKED_LENGTHS)


@pytest.mark.parametrize("path", [COMPLETE, CHAT, LENGTHS])
def test_bodies(asgi, path):
    async def ask():
        async with asgi() as client:
            for content, status in BODIES:
                reply = await client.post(path, content=content, headers={"content-type": "application/json"})
                check(reply, status, None, content[:60])

    asyncio.run(ask())


def test_other_types_paths_and_methods(asgi):
    async def ask():
        async with asgi() as client:
            body = json.dumps({"model": "toy", "prompt": "abc"}).encode()
            for kind in (
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data",
                "",
            ):
                reply = await client.post(COMPLETE, content=body, headers={"content-type": kind})
                check(reply, 415, None, kind)
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
                reply = await client.request(method, path)
                check(reply, 405, None, path)
                assert reply.headers["allow"]

    asyncio.run(ask())


def test_a_body_without_a_length_is_read_no_further_than_allowed(asgi):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 10_000

    async def ask():
        async with asgi() as client:
            reply = await client.post(
                COMPLETE, content=endless(), headers={"content-type": "application/json"}
            )
            check(reply, 413, None, "chunks")

    asyncio.run(ask())
    assert sent < 110
