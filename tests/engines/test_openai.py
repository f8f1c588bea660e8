"""A server as an engine: lastword's gives the records of this process; others report no costs."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import lastword
from lastword.cli.options import EngineOptions
from lastword.engines import GenerationRequest, ModelSource, OpenAIEngine
from lastword.errors import EngineError, LastwordError, SettingError
from lastword.evaluate import Journal
from lastword.evaluate.journal import read_records
from lastword.evaluate.run import evaluate
from lastword.evaluate.tables import tables
from lastword.models.toy import Toy
from lastword.recipe.resolve import resolve
from tests.engines.replies import Spelling, generate

pytest.importorskip("openai", reason="needs the package openai")
FIXED = lastword.Recipe(length=lastword.Fixed(6))
SLOW = 0  # the status of an answer that does not come


class OtherServer(BaseHTTPRequestHandler):
    """A server with the OpenAI API; `statuses` are the statuses of its next answers."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def respond(self, status, data):
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "0.01")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.server.has_key and self.headers["Authorization"] != "Bearer secret":
            return self.respond(401, {"error": {"message": "no key"}})
        assert not any("openai-" in name.lower() for name in self.headers)  # nothing of the environment
        if self.path != "/v1/models":
            return self.respond(404, {"detail": "Not Found"})
        return self.respond(200, {"object": "list", "data": [{"id": "theirs", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((self.path, body))
            status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == SLOW:
            self.server.closing.wait(10)
            return None
        if status != 200:
            return self.respond(status, {"error": {"message": "no", "code": "nothing"}})
        choice = {"message": {"content": "yes"}} if "messages" in body else {"text": "yes"}
        usage = {"prompt_tokens": 7, "completion_tokens": 1}
        choices = [{"index": 0, "finish_reason": "stop", "stop_reason": self.server.stop_reason, **choice}]
        return self.respond(200, {"choices": choices, "usage": usage, "system_fingerprint": "fp_1"})


@contextmanager
def other_server(*statuses, has_key=False, stop_reason=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    server.statuses, server.requests, server.has_key = list(statuses), [], has_key
    server.lock, server.closing, server.stop_reason = threading.Lock(), threading.Event(), stop_reason
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def url():
    pytest.importorskip("fastapi", reason="needs the package fastapi")
    pytest.importorskip("uvicorn", reason="needs the package uvicorn")
    from tests.serve.conftest import serving

    with serving(Toy()) as server:
        yield f"{server.url}/v1"


def run(engine, path, recipe=FIXED, task=Spelling(), **options):
    return evaluate(engine.model_info, "theirs", [task], recipe, Journal(path), engine=engine, **options)


def test_a_lastword_server_gives_the_records_of_this_process(url, tmp_path):
    recipe = lastword.Recipe(length=lastword.Survival(limit=16))
    journal = Journal(tmp_path / "a.jsonl")
    local = evaluate(lastword.load("toy"), "toy", [Spelling()], recipe, journal, max_batch_size=2)
    with OpenAIEngine(url, "toy", requests=3) as engine:
        journal = Journal(tmp_path / "b.jsonl")
        remote = evaluate(engine.model_info, "toy", [Spelling()], recipe, journal, engine=engine)
    differing = {
        "seconds", "seconds_share", "rows", "hardware", "versions", "tail", "cost", "probe_cost",
        "expected_length",
    }  # fmt: skip
    for here, there in zip(local, remote, strict=True):
        assert there.probe_cost is None
        assert (here.forward_passes, here.tokens_computed) == (there.forward_passes, there.tokens_computed)
        assert there.expected_length == pytest.approx(here.expected_length, abs=1e-3)
        equal = [name for name in asdict(here) if name not in differing]  # with the identity of the record
        assert [getattr(here, name) for name in equal] == [getattr(there, name) for name in equal]
        assert there.hardware.endswith(f"behind {url}")
    assert len(read_records(tmp_path / "b.jsonl")) == len(remote)


def test_token_ids_are_sent_unchanged(url):
    requests = {"a": GenerationRequest([0, 1, 2], 0), "b": GenerationRequest([0, 1, 2], 0, max_new_tokens=2)}
    with OpenAIEngine(url, "toy") as engine:
        replies = generate(engine, requests, resolve(FIXED, engine.model_info))
    assert [replies[key][0] for key in "ab"] == ["defghi", "de"]
    assert replies["b"][1]["finish"] == "truncated"


def test_a_stop_string_ends_the_answer_of_a_lastword_server(url):
    with OpenAIEngine(url, "toy") as engine:
        requests = {"a": GenerationRequest([0, 1, 2], 0, stop=("zz", "f"))}
        text, details, error = generate(engine, requests, resolve(FIXED, engine.model_info))["a"]
    assert (text, details["finish"], details["length"], error) == ("de", "stopped", 2, None)


@pytest.mark.parametrize(("reported", "finish"), [("f", "stopped"), ("other", "ended"), (None, "ended"), (7, "ended")])
def test_another_server_may_report_which_stop_string_ended_an_answer(reported, finish):
    with other_server(stop_reason=reported) as (server, url), OpenAIEngine(url, "theirs") as engine:
        details = generate(engine, {"a": GenerationRequest([1], 0, stop=("f", "g"))}, FIXED)["a"][1]
        plain = generate(engine, {"a": GenerationRequest([1], 0)}, FIXED)["a"][1]
    assert [body.get("stop") for _, body in server.requests] == [["f", "g"], None]
    assert (details["finish"], details.get("stop_reason")) == (finish, "f" if finish == "stopped" else None)
    assert plain["finish"] == "ended"


def test_a_request_that_is_not_answered_in_time_fails_alone():
    with other_server(SLOW) as (_, url), OpenAIEngine(url, "theirs", requests=1, timeout=0.2) as engine:
        replies = generate(engine, {at: GenerationRequest([at], 0) for at in range(3)}, FIXED)
    assert replies[0][2] == "the server did not answer within 0.2 s; see --timeout"
    assert [(replies[at][0], replies[at][2]) for at in (1, 2)] == [("yes", None)] * 2


def test_another_server_gets_a_limit_and_reports_no_costs(tmp_path):
    path = tmp_path / "a.jsonl"
    with other_server(429, 503, 502) as (server, url), OpenAIEngine(url, "theirs") as engine:
        records = run(engine, path)
        chats = [body for where, body in server.requests if where == "/v1/chat/completions"]
        run(engine, path, chat=False)
        prompts = [body["prompt"] for where, body in server.requests if where == "/v1/completions"]
    assert len(chats) == 9 + 3  # three retries
    assert (chats[0]["max_tokens"], chats[0]["temperature"]) == (6, 0.0)
    assert sorted(prompts) == sorted(sample.prompt for sample in Spelling().samples())
    first = records[0]
    assert (first.cost, first.probe_cost, first.seconds_share) == (None, None, None)
    assert (first.weights, first.dtype, first.finish, first.length) == ("unknown", "unknown", "ended", 1)
    assert first.versions["server"] == "fp_1"
    assert len(read_records(path)) == 18
    assert "| 9 | 6 | 1.000 ± 0.000 |  | 0.00 |  |  |  |" in tables(records)[0].markdown()


def test_another_server_cannot_use_a_recipe(tmp_path):
    recipe = lastword.Recipe(length=lastword.Survival(limit=16))
    rejected = pytest.raises(SettingError, match="give --length fixed:N")
    with other_server() as (_, url), OpenAIEngine(url, "theirs") as engine, rejected:
        run(engine, tmp_path / "a.jsonl", recipe)


def test_a_rejected_request_fails_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    with other_server(400) as (_, url), OpenAIEngine(url, "theirs", requests=1) as engine:
        with pytest.raises(EngineError, match=r"1 of 9 samples failed .*rejected the request.*400.*no"):
            run(engine, path)
        assert len(read_records(path)) == 8
        assert len(run(engine, path)) == 9


def test_an_unfinished_answer_is_not_sent_to_a_chat_server(tmp_path):
    task = Spelling(("user", "abc"), ("assistant", "de"))
    with other_server() as (server, url), OpenAIEngine(url, "theirs") as engine:
        with pytest.raises(EngineError, match="cannot continue an unfinished answer"):
            run(engine, tmp_path / "a.jsonl", task=task)
        assert not server.requests


def test_a_caller_who_stops_early_does_not_wait_for_retries():
    with other_server(*[503] * 1000) as (_, url), OpenAIEngine(url, "theirs") as engine:
        requests = {"end": GenerationRequest([], 0, prompt_text=({"role": "assistant", "content": "a"},))}
        requests |= {at: GenerationRequest([1], 0) for at in range(3)}
        replies = engine.generate(requests, FIXED, max_batch_size=4)
        assert next(replies)[0].key == "end"
        start = time.perf_counter()
        replies.close()
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("ending", "name", "message"),
    [("", "other", "serves theirs, not other"), ("/more", "theirs", "usually ends with /v1")],
)
def test_a_wrong_name_or_address_is_an_error(ending, name, message):
    rejected = pytest.raises(EngineError, match=message)
    with other_server() as (_, url), OpenAIEngine(url + ending, name) as engine, rejected:
        _ = engine.model_info


def test_a_server_that_is_gone_stops_the_run():
    with other_server() as (_, url), OpenAIEngine(url, "theirs") as engine:
        requests = {"a": GenerationRequest([1], 0)}
        assert generate(engine, requests, FIXED)["a"][0] == "yes"
    with OpenAIEngine(url, "theirs") as engine, pytest.raises(EngineError, match="cannot be reached"):
        generate(engine, requests, FIXED)


def test_only_the_lastword_key_is_sent(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    with other_server(has_key=True) as (_, url):
        with OpenAIEngine(url, "theirs") as engine, pytest.raises(EngineError, match="LASTWORD_API_KEY"):
            _ = engine.model_info
        monkeypatch.setenv("LASTWORD_API_KEY", "secret")
        with OpenAIEngine(url, "theirs") as engine:
            assert not engine.model_info.is_lastword


def test_wrong_settings_are_rejected():
    with pytest.raises(LastwordError, match="give http://"):
        OpenAIEngine("localhost:8000", "theirs")
    for timeout in (0, -1.0, float("inf")):
        with pytest.raises(SettingError, match="timeout must be a number above 0"):
            OpenAIEngine("http://localhost:8000", "theirs", timeout=timeout)
    options = EngineOptions("openai", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(SettingError, match="--quantization fp8 was given with --engine openai"):
        options.open(ModelSource("toy", quantization="fp8"))
