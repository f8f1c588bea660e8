"""Two replicas under load, one of them killed: nothing wrong, nothing lost, two again."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from lastword.api import generate
from tests.serve.ray.fleet import ask, fleet

pytest.importorskip("ray")

CLIENTS, REQUESTS, PROMPTS = 32, 96, 12
RETRYABLE = {"replica_lost", "starting"}


def prompts():
    from lastword.tasks import BENCHMARKS
    from lastword.tasks.frozen import load_frozen

    each = [load_frozen("validation", family)[: PROMPTS // 3] for family in BENCHMARKS[:3]]
    return [sample.prompt for family in each for sample in family]


def alone(model, texts):
    return {text: generate(model, text, recipe="fast").text for text in texts}


@pytest.mark.full
def test_a_killed_replica_loses_no_answer_and_gives_no_wrong_one():
    import lastword

    right = alone(lastword.load("tiny-llada-base", device="cpu"), prompts())
    answers, told = [], []

    async def load(own):
        asked = [(prompts()[n % PROMPTS], n % 2 == 0) for n in range(REQUESTS)]  # every other one is streamed
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=own.url, timeout=120, limits=limits) as client:

            async def one():
                while asked:
                    prompt, streamed = asked.pop()
                    body = {
                        "model": "tiny-llada-base",
                        "prompt": prompt,
                        "recipe": "fast",
                        "stream": streamed,
                    }
                    text, error, wait = await ask(client, body)
                    while text is None:
                        told.append(error)
                        await asyncio.sleep(wait)
                        text, error, wait = await ask(client, body)
                    answers.append((prompt, text))

            async def kill():
                while len(answers) < 10:
                    await asyncio.sleep(0.05)
                victim = max(own.replicas())
                os.kill(victim, signal.SIGKILL)
                return victim

            _, victim = await asyncio.gather(asyncio.gather(*(one() for _ in range(CLIENTS))), kill())
            return victim

    options = ("--replicas", "2", "--slots", "8")
    with fleet(*options, model="tiny-llada-base") as own:
        before = own.replicas()
        assert len(before) == 2
        victim = asyncio.run(asyncio.wait_for(load(own), 300))
        assert len(answers) == REQUESTS
        assert [prompt for prompt, text in answers if text != right[prompt]] == []
        assert {*told} <= RETRYABLE
        own.until_replicas(2)
        own.until(lambda said: len(own.replicas()) == 2)
        assert victim not in own.replicas()
        print(f"{len(told)} of {REQUESTS} were told to ask again")


def gone(processes):
    """All of them end by themselves; Ray's agents look for their raylet every few seconds."""
    ends = time.monotonic() + 15
    while left := {own: said for own, said in processes.items() if Path(f"/proc/{own}").exists()}:
        assert time.monotonic() < ends, left
        time.sleep(0.1)


@pytest.mark.full
def test_the_server_drains_and_leaves_nothing_behind():
    from tests.serve.ray.fleet import tree

    slow = {
        "model": "toy",
        "prompt": "abc",
        "stream": True,
        "recipe": {
            "length": "fixed:64",
            "unmask": {"name": "coin-flip", "schedule": {"name": "timesteps", "pace": 0.05}},
        },
    }

    async def drained(own):
        async with httpx.AsyncClient(base_url=own.url, timeout=60) as client:
            asking = asyncio.create_task(ask(client, slow))
            while not (await client.get("/health")).json()["counts"]["working"]:
                assert not asking.done()
                await asyncio.sleep(0.02)
            own.process.send_signal(signal.SIGTERM)
            while not (health := await client.get("/health")).json()["draining"]:
                await asyncio.sleep(0.02)
            refused = await client.post("/v1/completions", json=slow)
            return health, refused, await asking

    with fleet("--replicas", "1", "--drain", "30", replicas=1) as own:
        below = tree(own.process.pid)
        health, refused, (text, error, _) = asyncio.run(asyncio.wait_for(drained(own), 60))
        assert own.process.wait(30) == 0
        gone(below)
    assert health.status_code == 503
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert text
    assert error is None


@pytest.mark.full
def test_replicas_follow_the_work():
    """One, two under load, one again."""
    options = ("--replicas", "1:2", "--work", "1", "--up", "1", "--down", "3", "--slots", "2")
    body = {"model": "tiny-llada-base", "prompt": prompts()[0], "recipe": "fast"}

    async def load(own):
        async with httpx.AsyncClient(base_url=own.url, timeout=120) as client:
            asking = [asyncio.create_task(ask(client, body)) for _ in range(48)]
            done = asyncio.gather(*asking)
            most = 1
            while not done.done():
                counts = (await client.get("/health")).json()["counts"]
                most = max(most, counts["replicas"])
                await asyncio.sleep(0.1)
            return most, await done

    with fleet(*options, model="tiny-llada-base", replicas=1) as own:
        most, answers = asyncio.run(asyncio.wait_for(load(own), 240))
        assert most == 2
        assert len({text for text, _, _ in answers}) == 1
        assert {error for _, error, _ in answers} == {None}
        own.until_replicas(1)
