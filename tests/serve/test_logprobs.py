"""Log-probabilities of the tokens of an answer, in OpenAI's shapes."""

import asyncio
import json
import math
from types import SimpleNamespace

import pytest
import torch

import lastword
from lastword.serve import engine as engine_module, scheduler as scheduler_module
from lastword.serve.metrics import EngineMetrics
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings
from tests.serve.conftest import chunks_of

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]}


def answers(client, path, *bodies):
    """Return the responses to requests that are sent at the same time; of a stream, its chunks."""

    async def post(opened, body):
        response = await opened.post(path, json={"model": "toy", **body})
        assert response.status_code == 200, response.text
        return chunks_of(response.text.splitlines()) if body.get("stream") else response.json()

    async def all_answers():
        async with client as opened:
            return await asyncio.gather(*(post(opened, body) for body in bodies))

    return asyncio.run(all_answers())


def expected(toy, start, count):
    """Return the log-probability of the toy's most likely letter at each position."""
    return [math.log((1 - toy.hazard) * (0.4 + 0.5 * math.modf(p * 0.618)[0])) for p in range(start, start + count)]


@pytest.mark.parametrize("recipe", ["careful", "fast", "paper"])
def test_each_token_has_the_probability_that_the_model_gave_it(asgi, toy, recipe):
    bodies = [{"prompt": "a" * n, "length": f"fixed:{20 - n}", "recipe": recipe} for n in range(1, 6)]
    replies = answers(asgi(), COMPLETE, *({**body, "logprobs": 0} for body in bodies), *bodies)
    for n in range(1, 6):
        (choice,) = replies[n - 1]["choices"]
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["token_logprobs"] == pytest.approx(expected(toy, n, len(choice["text"])), abs=1e-5)
        assert logprobs["text_offset"] == [*range(len(choice["text"]))]
        assert logprobs["top_logprobs"] is None
    assert [reply["choices"][0]["logprobs"] for reply in replies[5:]] == [None] * 5
    assert [a["choices"][0]["text"] for a in replies[:5]] == [a["choices"][0]["text"] for a in replies[5:]]


def test_one_alternative_is_the_token(asgi):
    (reply,) = answers(asgi(), COMPLETE, {"prompt": ["ab", "cd"], "length": "fixed:3", "n": 2, "logprobs": 1})
    assert len(reply["choices"]) == 4
    for choice in reply["choices"]:
        logprobs = choice["logprobs"]
        pairs = zip(logprobs["tokens"], logprobs["token_logprobs"])
        assert logprobs["top_logprobs"] == [{token: value} for token, value in pairs]


def test_a_chat_has_tokens_with_bytes(asgi, instruct):
    whole, stream, off, zero = answers(
        asgi(instruct), CHAT, {**QUESTION, "logprobs": True}, {**QUESTION, "logprobs": True, "stream": True},
        {**QUESTION, "logprobs": False}, {**QUESTION, "logprobs": True, "top_logprobs": 0, "temperature": 0.9},
    )  # fmt: skip
    (choice,) = whole["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == choice["message"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    assert all(token["logprob"] <= 0 and token["top_logprobs"] == [] for token in content)
    assert off["choices"][0]["logprobs"] is None
    # Of a stream, the chunk with the finish reason has all tokens: they are decoded out of order.
    *others, last = (chunk["choices"][0] for chunk in stream)
    assert all(other["logprobs"] is None for other in others)
    assert last["finish_reason"] == "stop"
    assert last["logprobs"]["content"] == [{**token, "logprob": pytest.approx(token["logprob"])} for token in content]
    assert all(token["logprob"] <= 0 for token in zero["choices"][0]["logprobs"]["content"])


def test_a_character_of_several_tokens_has_the_bytes_once(asgi, instruct):
    frames = engine_module.RowTrace(instruct.tokenizer, instruct.ids)
    ids = instruct.tokenizer.encode("a\N{SNOWMAN}b")
    assert len(ids) > 3
    frames.after(ids, [0.5] * len(ids), 1)
    assert [text for text, _ in frames.logprobs(len(ids))] == ["a", "\N{SNOWMAN}", *[""] * (len(ids) - 3), "b"]
    assert frames.logprobs(1) == [("a", math.log(0.5))]


def test_impossible_and_unknown_probabilities():
    toy = lastword.Toy()
    frames = engine_module.RowTrace(toy.tokenizer, toy.ids)
    frames.after([0, 1, 2], [0.0, None, 1.0000001], 1)
    assert frames.logprobs(3) == [("a", -9999.0), ("b", None), ("c", 0.0)]


def test_tokens_after_a_stop_string_have_none(asgi):
    (reply,) = answers(asgi(), COMPLETE, {"prompt": "a", "length": "fixed:20", "stop": ["ef"], "logprobs": 0})
    assert reply["choices"][0]["text"] == "bcd"
    assert reply["choices"][0]["logprobs"]["tokens"] == ["b", "c", "d"]


def test_frames_can_have_them_as_well(asgi):
    body = {"prompt": "a", "length": "fixed:4", "stream": True, "diffusing": True, "logprobs": 0}
    ((*chunks, last),) = answers(asgi(), COMPLETE, body)
    assert last["choices"][0]["logprobs"]["tokens"] == ["b", "c", "d", "e"]
    assert any("frame" in json.dumps(chunk) for chunk in chunks)


def test_nothing_is_recorded_unless_requested(asgi, monkeypatch):
    monkeypatch.setattr(engine_module, "RowTrace", None)
    (reply,) = answers(asgi(), COMPLETE, {"prompt": "a", "logprobs": False})
    assert reply["choices"][0]["logprobs"] is None


@pytest.mark.gpu
def test_on_a_gpu_they_are_known_although_graphs_are_replayed(asgi):
    model = lastword.load("tiny-llada-instruct", device="cuda")
    bodies = [{**QUESTION, "recipe": "fast", "logprobs": number >= 12} for number in range(16)]
    texts = set()
    for number, reply in enumerate(answers(asgi(model), CHAT, *bodies)):
        (choice,) = reply["choices"]
        texts.add(choice["message"]["content"])
        if number >= 12:
            assert all(token["logprob"] is not None for token in choice["logprobs"]["content"])
    assert len(texts) == 1


def test_requests_with_log_probabilities_do_not_join_sessions_that_replay_graphs(monkeypatch):
    """A replayed pass keeps no logits."""

    started, model = [], SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(scheduler_module, "decode_steps", lambda *args, **options: started.append(args[-1]))
    worker = engine_module.DecodeWorker(model, ServerSettings(), Scheduler(), EngineMetrics())
    recipe = lastword.Recipe()

    def session(logprobs):
        request = SimpleNamespace(recipe=recipe, logprobs=logprobs)
        return worker._session_for(SimpleNamespace(request=request, prompt_tokens=3, alone=False))

    plain, recorded = session(False), session(True)
    assert plain is not recorded
    assert [settings.use_cuda_graphs for settings in started] == [True, False]
    assert (session(False), session(True)) == (plain, recorded)
