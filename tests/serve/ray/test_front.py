"""The one that listens, in front of an application of this process: the same API, keys and limits."""

import asyncio
import contextlib

import httpx

from lastword.serve.app import create_app
from lastword.serve.engine import Engine
from lastword.serve.ray import create_front_app, run_application
from lastword.serve.settings import ServerSettings

INNER = "only between us"
ASKING = {"model": "toy", "prompt": "abc", "recipe": {"length": "fixed:8"}}


class Here:
    """A fleet of one, without Ray."""

    def __init__(self, engine, app):
        self.engine, self.app, self.asked = engine, app, []

    @property
    def state(self):
        return self.engine.state

    def counts(self):
        return {**self.engine.counts(), "replicas": 1}

    async def metrics(self):
        return b"numbers"

    async def answer(self, asked, send):
        self.asked.append(asked)
        async for message in run_application(self.app, asked):
            await send(message)


@contextlib.asynccontextmanager
async def front(toy, keys=(), hosts=(), **limits):
    limits = ServerSettings(drain=5.0, **limits)
    engine, inner = Engine(toy, limits), INNER if keys else None
    engine.start()
    fleet = Here(engine, create_app(engine, name="toy", keys=[inner] if inner else ()))
    app = create_front_app(fleet, limits=limits, keys=keys, inner_key=inner, hosts=hosts)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        client.fleet = fleet
        while engine.state == "starting":
            await asyncio.sleep(0.01)
        yield client
    await engine.stop(0.0)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_answers_streams_and_errors_are_those_of_the_application(toy):
    async def asked():
        async with front(toy) as client:
            whole = await client.post("/v1/completions", json=ASKING)
            streamed = await client.post("/v1/completions", json={**ASKING, "stream": True})
            wrong = await client.post("/v1/completions", json={**ASKING, "lenght": 3})
            models, described = await client.get("/v1/models"), await client.get("/openapi.json")
            other = await client.post("/health")
            none = await client.get("/nowhere")
            return whole, streamed, wrong, models, described, other, none

    whole, streamed, wrong, models, described, other, none = run(asked())
    assert whole.status_code == 200
    assert whole.json()["choices"][0]["text"]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "unknown_field")
    assert models.json()["data"][0]["id"] == "toy"
    assert "/v1/completions" in described.json()["paths"]
    assert (other.status_code, none.status_code) == (405, 404)


def test_page_health_and_metrics_are_answered_here(toy):
    async def asked():
        async with front(toy) as client:
            seen = [await client.get(path) for path in ("/", "/health", "/metrics")]
            assert not client.fleet.asked
            return seen

    page, health, metrics = run(asked())
    assert "<html" in page.text
    assert health.json()["counts"]["replicas"] == 1
    assert health.json()["ready"]
    assert metrics.text == "numbers"


def test_replicas_see_no_key_of_a_client(toy):
    async def asked():
        async with front(toy, keys=["secret"]) as client:
            refused = [
                await client.post("/v1/completions", json=ASKING),
                await client.get("/metrics"),
                await client.get("/v1/models", headers={"Authorization": f"Bearer {INNER}"}),
            ]
            mine = {"Authorization": "Bearer secret"}
            taken = await client.post("/v1/completions", json=ASKING, headers=mine)
            open_to_all = [await client.get(p) for p in ("/", "/health", "/openapi.json")]
            return refused, taken, open_to_all, client.fleet.asked

    refused, taken, open_to_all, forwarded = run(asked())
    assert [own.status_code for own in refused] == [401] * 3
    assert taken.status_code == 200
    assert [own.status_code for own in open_to_all] == [200] * 3
    assert "security" in open_to_all[-1].json()["paths"]["/v1/completions"]["post"]
    assert not any(b"secret" in value for own in forwarded for _, value in own.headers)


def test_a_body_that_is_too_large_is_not_handed_on(toy):
    async def asked():
        async with front(toy, body=100) as client:
            reply = await client.post("/v1/completions", json={**ASKING, "prompt": "a" * 200})
            return reply, client.fleet.asked

    reply, forwarded = run(asked())
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert not forwarded


def test_another_name_is_refused_where_names_matter(toy):
    async def asked():
        async with front(toy, hosts={"localhost"}) as client:
            return await client.get("/health"), await client.get("http://localhost/health")

    wrong, right = run(asked())
    assert (wrong.status_code, right.status_code) == (400, 200)
