"""Request ids, the access log, counters of requests and errors, health paths, HEAD and CORS."""

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lastword.errors import SettingError
from lastword.serve.app import create_app
from lastword.serve.request import ServerError
from lastword.serve.serving import ModelService
from lastword.serve.settings import ServerSettings
from lastword.version import __version__
from tests.serve.conftest import ROOT, SETTINGS, chunks_of, is_idle, served, serving, wait_until
from tests.serve.test_app import ASK, COMPLETE, Scripted

KEY = "the-secret-key"


def send(engine, *requests, keys=(), hosts=(), **settings):
    """Return the responses to (method, path, options), one after the other, over one application."""

    async def each():
        chosen = replace(SETTINGS, **settings)
        app = create_app(ModelService(engine, "toy"), name="toy", keys=keys, hosts=hosts, settings=chosen)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return asyncio.run(each())


def samples(text, name):
    """Return the values of a metric by its labels in alphabetical order, without zeros."""
    families = text_string_to_metric_families(text)
    matching = [sample for family in families for sample in family.samples if sample.name == f"lastword:{name}"]
    return {tuple(sample.labels.values()): sample.value for sample in matching if sample.value}


@pytest.fixture
def lines(caplog):
    """`lines()` returns the lines of the access log so far."""
    caplog.set_level(logging.INFO, "lastword.access")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "lastword.access"]


GOOD_IDS = ["abc", "A.b_c:d-9", "x" * 128]
BAD_IDS = ["", "x" * 129, "a b", "a\tb", 'a"b', "a=b", "é", "a/b"]


@pytest.mark.parametrize("given", GOOD_IDS + BAD_IDS)
def test_a_sane_request_id_is_returned_and_any_other_is_replaced(toy, given):
    headers = {b"x-request-id": given.encode()}
    paths = ["/live", "/nowhere", "/v1/models"]
    responses = send(Scripted(toy, []), *(("GET", path, {"headers": headers}) for path in paths), keys=[KEY])
    ids = [response.headers.get_list("x-request-id") for response in responses]
    if given in GOOD_IDS:
        assert ids == [[given]] * 3
    else:
        assert all(re.fullmatch(r"[0-9a-f]{32}", one) for (one,) in ids)
        assert len({one for (one,) in ids}) == 3


def test_streams_and_failures_have_the_id(live_toy):
    with httpx.Client(base_url=live_toy.url, headers={"X-Request-ID": "mine"}) as client:
        with client.stream("POST", COMPLETE, json={**ASK, "stream": True}) as response:
            chunks = chunks_of(response.iter_lines())
        assert response.headers["x-request-id"] == "mine"
        assert chunks[-1]["choices"][0]["finish_reason"]  # the chunk with the usage was not requested
        assert client.post(COMPLETE, json={}).headers["x-request-id"] == "mine"


def test_an_unexpected_error_is_counted_logged_and_has_the_id(toy, lines):
    class Broken(ModelService):
        async def health(self):
            raise RuntimeError("secret inside")

    async def get():
        app = create_app(Broken(Scripted(toy, []), "toy"), name="toy", settings=replace(SETTINGS, access_log="text"))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/health", headers={"X-Request-ID": "mine"}), await client.get("/metrics")

    health, metrics = asyncio.run(get())
    assert health.status_code == 500
    assert health.json()["error"]["code"] == "server_error"
    assert health.headers["x-request-id"] == "mine"
    assert "secret" not in health.text
    assert samples(metrics.text, "http_errors_total") == {("server_error", "/health"): 1}
    assert " status=500 " in lines()[0]
    assert " id=mine error=server_error" in lines()[0]


REFUSED = [  # method, path, options, settings of the application, status, label of the path, code
    ("POST", COMPLETE, {"json": ASK}, {"error": ServerError("full", "overloaded")}, 429, COMPLETE, "overloaded"),
    ("POST", COMPLETE, {"json": ASK}, {"error": ServerError("stop", "draining")}, 503, COMPLETE, "draining"),
    ("POST", COMPLETE, {"json": {**ASK, "n": 0}}, {}, 400, COMPLETE, "invalid_request"),
    ("POST", COMPLETE, {"json": {**ASK, "x": 0}}, {}, 400, COMPLETE, "unknown_field"),
    ("POST", COMPLETE, {"json": ASK}, {"max_body_bytes": 9}, 413, COMPLETE, "request_too_large"),
    ("POST", COMPLETE, {"content": b"a"}, {}, 415, COMPLETE, "unsupported_media_type"),
    ("POST", COMPLETE, {"json": ASK}, {"keys": [KEY]}, 401, COMPLETE, "invalid_api_key"),
    ("GET", "/v1/models/x", {}, {"hosts": ["other"]}, 400, "/v1/models/{model:path}", "invalid_host"),
    ("GET", "/v1/models/x", {}, {}, 404, "/v1/models/{model:path}", "model_not_found"),
    ("GET", "/%0aanything", {}, {}, 404, "other", "not_found"),
    ("BREW", COMPLETE, {}, {}, 405, COMPLETE, "method_not_allowed"),
]


@pytest.mark.parametrize(("method", "path", "options", "settings", "status", "route", "code"), REFUSED)
def test_refusals_are_counted_by_reason(toy, lines, method, path, options, settings, status, route, code):
    settings = {**settings, "access_log": "text"}
    engine = Scripted(toy, settings.pop("error", []))
    headers = {"Host": settings["hosts"][0]} if "hosts" in settings else {}
    headers |= {"Authorization": f"Bearer {KEY}"} if "keys" in settings else {}
    requests = [(method, path, options), ("GET", "/metrics", {"headers": headers})]
    refused, metrics = send(engine, *requests, **settings)
    assert refused.status_code == status
    assert refused.json()["error"]["code"] == code
    assert samples(metrics.text, "http_errors_total") == {(code, route): 1}
    label = "other" if method == "BREW" else method
    assert samples(metrics.text, "http_requests_total") == {(label, route, str(status)): 1}
    assert samples(metrics.text, "http_request_duration_seconds_count") == {(route,): 1}
    assert f" status={status} " in lines()[0]
    assert lines()[0].endswith(f" error={code}")


def test_unknown_paths_and_methods_share_one_label(toy):
    requests = [("GET", f"/{number}", {}) for number in range(50)] + [(f"M{number}", "/", {}) for number in range(50)]
    *_, metrics = send(Scripted(toy, []), *requests, ("GET", "/metrics", {}))
    expected = {("GET", "other", "404"): 50, ("other", "/", "405"): 50}
    assert samples(metrics.text, "http_requests_total") == expected


def test_metrics_have_the_build_and_the_process(toy):
    metrics = send(Scripted(toy, []), ("GET", "/metrics", {}))[0].text
    ((dtype, model, recipe, version),) = samples(metrics, "build_info")
    assert (version, model, dtype) == (__version__, "toy", "float32")
    assert "survival:64" in recipe
    assert {"process_resident_memory_bytes", "process_open_fds", "python_gc_collections_total"} <= {
        line.split("{")[0].split(" ")[0] for line in metrics.splitlines()
    }
    kinds = re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE)
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_of_an_answer(toy, lines, stream):
    settings = replace(SETTINGS, access_log="json")
    body = {**ASK, "n": 2, "length": "fixed:5", "stream": stream, "metadata": {"team": "a\nb"}}
    with serving(toy, settings=settings, keys=[KEY]) as server:
        headers = {"X-Request-ID": "one", "Authorization": f"Bearer {KEY}"}
        httpx.post(f"{server.url}{COMPLETE}?api_key={KEY}", json=body, headers=headers).raise_for_status()
    (line,) = lines()
    fields = json.loads(line)
    seconds, time = fields.pop("seconds"), fields.pop("time")
    assert 0 < seconds < 10
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", time)
    assert fields == {
        "client": "127.0.0.1", "method": "POST", "path": COMPLETE, "status": 200, "id": "one", "prompt_tokens": 3,
        "completion_tokens": 10, "finish_reason": "length", "metadata": {"team": "a\nb"},
    }  # fmt: skip
    assert "\n" not in line
    assert KEY not in line


def test_a_text_line_has_neither_key_nor_metadata_nor_line_breaks(toy, lines):
    path = "/a%0ab%20status=200\N{SNOWMAN}" + "x" * 500
    options = {"headers": {"Authorization": f"Bearer {KEY}"}, "params": {"key": KEY}}
    body = {"json": {**ASK, "metadata": {"team": "red"}}}
    send(Scripted(toy, []), ("GET", path, options), ("POST", COMPLETE, body), access_log="text", keys=[KEY])
    first, second = lines()
    assert " path=/a%0Ab%20status%3D200%E2%98%83x" in first
    assert len(first) < 500
    assert all(re.fullmatch(r"(\w+=[\x21-\x7e]* ?)+", line) for line in lines())
    assert KEY not in first + second
    assert "red" not in second


def test_a_client_that_leaves_is_logged(toy, lines):
    with serving(toy, settings=replace(SETTINGS, access_log="text")) as server:
        body = {**ASK, "length": "fixed:64", "stream": True, "recipe": "paper"}
        with httpx.stream("POST", server.url + COMPLETE, json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: lines() and is_idle(server.engine))
        metrics = httpx.get(f"{server.url}/metrics").text
    assert " status=200 " in lines()[0]
    assert lines()[0].endswith(" error=client_disconnected")
    assert samples(metrics, "http_errors_total") == {("client_disconnected", COMPLETE): 1}


def test_an_error_in_a_stream_is_counted(toy, lines):
    engine = Scripted(toy, ["def", ServerError("too late", "deadline_exceeded")])
    body = {"json": {**ASK, "stream": True}}
    stream, metrics = send(engine, ("POST", COMPLETE, body), ("GET", "/metrics", {}), access_log="text")
    assert stream.status_code == 200
    assert samples(metrics.text, "http_errors_total") == {("deadline_exceeded", COMPLETE): 1}
    assert lines()[0].endswith(" error=deadline_exceeded")


@pytest.mark.parametrize(("access_log", "logged"), [("off", False), ("text", True), ("json", True)])
def test_the_option_sets_the_format(access_log, logged):
    with served("--access-log", access_log) as server:
        httpx.get(f"{server.url}/live", headers={"X-Request-ID": "mine"}).raise_for_status()
        server.process.terminate()
        output = server.process.communicate(timeout=20)[0]
    (line,) = [line for line in output.splitlines() if "drains" not in line] or [None]
    assert (line is not None) == logged
    if access_log == "json":
        assert json.loads(line)["id"] == "mine"
    if access_log == "text":
        assert " path=/live status=200 " in line


@pytest.mark.parametrize("options", [["--access-log", "xml"], ["--allow-origin", "https://a.example/path"]])
def test_a_wrong_option_is_refused(options):
    command = [sys.executable, "-m", "lastword", "serve", "--model", "toy", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert options[1] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["/", "/live", "/ready", "/health", "/v1/models", "/v1/models/toy", "/openapi.json"])
def test_head_is_get_without_a_body(live_toy, path):
    get = httpx.get(live_toy.url + path)
    with socket.create_connection(("127.0.0.1", live_toy.port), timeout=10) as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert head.startswith(b"HTTP/1.1 200")
    assert head.endswith(b"\r\n\r\n")
    assert f"content-length: {len(get.content)}\r\n".encode() in head


def test_head_of_a_path_for_post_is_refused(toy):
    (response,) = send(Scripted(toy, []), ("HEAD", COMPLETE, {}))
    assert response.status_code == 405


@pytest.mark.parametrize("state", ["starting", "ready", "draining", "stopped"])
def test_live_ready_and_health_need_no_key(toy, state):
    engine = Scripted(toy, [])
    engine.state = state
    live, ready, health = send(engine, *(("GET", path, {}) for path in ("/live", "/ready", "/health")), keys=[KEY])
    assert (live.status_code, live.json()) == (200, {"live": True})
    assert (ready.status_code, ready.json()) == (health.status_code, health.json())
    assert ready.status_code == (200 if state == "ready" else 503)


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
        ((), "https://a.example", None),
    ],
)
def test_other_websites_may_call_the_server_only_if_allowed(toy, allowed, origin, answer):
    requests = [
        ("OPTIONS", COMPLETE, {"headers": {"Origin": origin, **PREFLIGHT}}),
        ("POST", COMPLETE, {"headers": {"Origin": origin}, "json": ASK}),  # without the key
    ]
    preflight, refused = send(Scripted(toy, []), *requests, keys=[KEY], allowed_origins=allowed)
    header = "access-control-allow-origin"
    assert preflight.headers.get(header) == refused.headers.get(header) == answer
    assert preflight.status_code == (200 if answer else 400 if allowed else 401)
    assert refused.status_code == 401
    if answer:
        assert "X-Request-ID" in refused.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["a.example", "https://A.example", "https://a.example/", "null", "", "https://*.a"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(SettingError, match="origin"):
        ServerSettings(allowed_origins=(origin,))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/chat/completions"])
def test_an_unknown_path_names_the_right_one(toy, path):
    (response,) = send(Scripted(toy, []), ("POST", path, {"json": {}}))
    assert response.status_code == 404
    assert "use /v1/chat/completions" in response.json()["error"]["message"]
