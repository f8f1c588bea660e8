"""An HTTP server as an engine: ours gives the records of this process; others are taken at their word."""

import json
import threading
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import lastword
from lastword.engines.base import GenerationRequest
from lastword.engines.openai import OpenAIEngine
from lastword.errors import EngineError, LastwordError, SettingError
from lastword.evaluate import Journal
from lastword.evaluate.archive import pack
from lastword.evaluate.journal import read_records
from lastword.evaluate.run import evaluate
from lastword.evaluate.task import Sample
from lastword.models.toy import Toy
from lastword.paper.overview import tables
from lastword.recipe.resolve import resolve

pytest.importorskip("httpx", reason="needs the package httpx")
FIXED = lastword.Recipe(length=lastword.Fixed(6))


class Spelling:
    name, group, version = "spelling", "spelling", "1"

    def samples(self, limit=None):
        return [Sample("spelling", at, "abc"[: 1 + at % 3] * (1 + at % 5)) for at in range(9)]

    def score(self, samples, texts):
        return [float(len(text) % 2) for text in texts]


class Chatting(Spelling):
    def samples(self, limit=None):
        begun = (("user", "abc"), ("assistant", "de"))
        return [Sample("spelling", 0, "abc", turns=begun), Sample("spelling", 1, "abc")]


class Foreign(BaseHTTPRequestHandler):
    """A server of somebody else's; `script` says what becomes of the next requests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def say(self, status, data, **headers):
        body = json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.server.keyed and self.headers.get("Authorization") != "Bearer open":
            return self.say(401, {"error": {"message": "no key"}})
        if self.path != "/v1/models":
            return self.say(404, {"detail": "Not Found"})
        return self.say(200, {"object": "list", "data": [{"id": "theirs", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, body))
            status = self.server.script.pop(0) if self.server.script else 200
        if status != 200:
            error = {"error": {"message": "no", "code": "nothing"}}
            return self.say(status, error, **({"Retry_After": 0} if status in (429, 503) else {}))
        chat = "messages" in body
        choice = {"message": {"content": "yes"}} if chat else {"text": "yes"}
        usage = {"prompt_tokens": 7, "completion_tokens": 1}
        choices = [{"index": 0, "finish_reason": "stop", **choice}]
        return self.say(200, {"choices": choices, "usage": usage, "system_fingerprint": "fp_1"})


@contextmanager
def foreign(*script, keyed=False):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    server.script, server.asked, server.keyed = list(script), [], keyed
    server.lock = threading.Lock()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def ours():
    pytest.importorskip("fastapi", reason="needs the package fastapi")
    pytest.importorskip("uvicorn", reason="needs the package uvicorn")
    from tests.serve.conftest import serving

    with serving(Toy()) as server:
        yield f"{server.url}/v1"


def test_our_server_gives_the_records_of_this_process(ours, tmp_path):
    toy, recipe = lastword.load("toy"), lastword.Recipe(length=lastword.Survival(limit=16))
    local = evaluate(toy, "toy", [Spelling()], recipe, Journal(tmp_path / "a.jsonl"), rows=2)
    with OpenAIEngine(ours, "toy", requests=3) as engine:
        found = evaluate(
            engine.model, "toy", [Spelling()], recipe, Journal(tmp_path / "b.jsonl"), engine=engine
        )
    unlike = {"seconds", "batch_seconds", "rows", "hardware", "versions", "tail"}
    for here, there in zip(local, found, strict=True):
        one, other = asdict(here), asdict(there)
        assert other["probe_cost"] is None
        assert (here.forward_passes, here.tokens_computed) == (
            there.forward_passes,
            there.tokens_computed,
        )
        assert other["expected_length"] == pytest.approx(one["expected_length"], abs=1e-3)
        for name in unlike | {"cost", "probe_cost", "expected_length"}:
            one.pop(name), other.pop(name)
        assert one == other  # the identity among it: either resumes the other
        assert there.hardware.endswith(f"behind {ours}")
    assert len(read_records(tmp_path / "b.jsonl")) == len(found)
    with pytest.raises(SettingError, match="an archive holds arms whose costs are known"):
        pack(found)


def test_ids_are_sent_as_they_are(ours):
    questions = {"a": GenerationRequest([0, 1, 2], 0), "b": GenerationRequest([0, 1, 2], 0, max_new_tokens=2)}
    recipe = resolve(FIXED, lastword.load("toy"))
    with OpenAIEngine(ours, "toy") as engine:
        found = {one.key: one for b in engine.generate(questions, recipe, max_batch_size=2) for one in b}
    assert [found[key].text for key in "ab"] == ["defghi", "de"]
    assert found["b"].details["finish"] == "truncated"


def test_another_server_is_capped_and_nobody_counts(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    with foreign(429, 503, 502) as (server, url), OpenAIEngine(url, "theirs") as engine:
        found = evaluate(engine.model, "theirs", [Spelling()], FIXED, journal, engine=engine)
        plain = [body for path, body in server.asked if path == "/v1/chat/completions"]
        evaluate(engine.model, "theirs", [Spelling()], FIXED, journal, engine=engine, chat=False)
        texts = [body["prompt"] for path, body in server.asked if path == "/v1/completions"]
    assert len(plain) == 9 + 3  # each of three tried again
    assert plain[0]["max_tokens"] == 6
    assert plain[0]["temperature"] == 0.0
    assert sorted(texts) == sorted(sample.prompt for sample in Spelling().samples())
    (first, *_) = found
    assert (first.cost, first.probe_cost, first.batch_seconds) == (None, None, None)
    assert (first.weights, first.dtype, first.finish, first.length) == (
        "unknown", "unknown", "ended", 1,
    )  # fmt: skip
    assert first.versions["server"] == "fp_1"
    assert len(read_records(journal.path)) == 18
    assert "| 9 | 6 | 1.000 ± 0.000 |  | 0.00 |  |  |  |" in tables(found)


def test_another_server_cannot_be_told_a_recipe(tmp_path):
    recipe = lastword.Recipe(length=lastword.Survival(limit=16))
    journal = Journal(tmp_path / "a.jsonl")
    refused = pytest.raises(SettingError, match="give --length fixed:N")
    with foreign() as (_, url), OpenAIEngine(url, "theirs") as engine, refused:
        evaluate(engine.model, "theirs", [Spelling()], recipe, journal, engine=engine)


def test_a_refused_question_fails_alone(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    with foreign(400) as (_, url), OpenAIEngine(url, "theirs", requests=1) as engine:
        with pytest.raises(EngineError, match=r"1 of 9 samples failed .*refused it \(400\): no"):
            evaluate(engine.model, "theirs", [Spelling()], FIXED, journal, engine=engine)
        assert len(journal.done()) == 8
        assert len(evaluate(engine.model, "theirs", [Spelling()], FIXED, journal, engine=engine)) == 9


def test_an_answer_that_was_begun_is_not_asked_of_a_chat_server(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    refused = pytest.raises(EngineError, match="does not go on with an answer that was begun")
    with foreign() as (_, url), OpenAIEngine(url, "theirs") as engine, refused:
        evaluate(engine.model, "theirs", [Chatting()], FIXED, journal, engine=engine)
    assert len(journal.done()) == 1


def test_a_server_that_is_gone_stops_the_run(monkeypatch):
    monkeypatch.setattr("lastword.engines.http.Http._pause", lambda *given: None)
    with foreign() as (_, url):
        pass
    with OpenAIEngine(url, "theirs") as engine, pytest.raises(EngineError, match="cannot be reached"):
        _ = engine.model


def test_a_key_is_sent_and_its_lack_is_told(monkeypatch):
    with foreign(keyed=True) as (_, url):
        with OpenAIEngine(url, "theirs") as engine, pytest.raises(EngineError, match="LASTWORD_API_KEY"):
            _ = engine.model
        monkeypatch.setenv("LASTWORD_API_KEY", "open")
        with OpenAIEngine(url, "theirs") as engine:
            assert not engine.served.ours


@pytest.mark.parametrize(
    ("ending", "name", "words"),
    [
        ("", "other", "serves theirs, and other was asked for"),
        ("/more", "theirs", "mostly ends with /v1"),
    ],
)
def test_what_is_not_there_is_told(ending, name, words):
    refused = pytest.raises(EngineError, match=words)
    with foreign() as (_, url), OpenAIEngine(url + ending, name) as engine, refused:
        _ = engine.model


def test_a_url_that_is_none_is_refused():
    with pytest.raises(LastwordError, match="begins with http://"):
        OpenAIEngine("localhost:8000", "theirs")
