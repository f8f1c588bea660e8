"""`lastword serve --engine ray` as an operator starts it: a lost replica, draining, and scaling."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

import lastword
from lastword.tasks import BENCHMARKS, load_frozen
from tests.serve.conftest import served

pytest.importorskip("ray")
pytestmark = pytest.mark.full

READY = 300.0  # seconds
CLIENTS, REQUESTS, PROMPTS = 32, 96, 12


def processes_below(parent):
    """Return the command of every process below one, by number."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes()
    below, found = {parent}, {}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
        found |= {child: commands[child] for child in more}
    return found


class Fleet:
    """A server with its replicas."""

    def __init__(self, process, url):
        self.process, self.url = process, url

    def health(self):
        return httpx.get(f"{self.url}/health", timeout=10).json()

    def replicas(self):
        """Return the numbers of the processes with a replica."""
        below = processes_below(self.process.pid)
        return {number for number, command in below.items() if b"ServeReplica" in command}

    def wait_until(self, condition, seconds=READY):
        deadline = time.monotonic() + seconds
        while not condition(health := self.health()):
            assert self.process.poll() is None, "the server exited"
            assert time.monotonic() < deadline, f"the condition was not met in time: {health}"
            time.sleep(0.1)

    def wait_for_replicas(self, number):
        self.wait_until(lambda health: health["ready"] and health["counts"]["replicas"] == number)


@contextlib.contextmanager
def fleet(*options, model="toy", replicas=2):
    """Start replicas of a model, and end everything that was started."""
    with served("--engine", "ray", "--cpus", "0.5", *options, model=model) as server:
        started = Fleet(server.process, server.url)
        started.wait_for_replicas(replicas)
        below = processes_below(server.process.pid)
        try:
            yield started
        finally:
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(Exception):
                    server.process.wait(20)
                below |= processes_below(server.process.pid)
            for number, command in below.items():  # left by a server that was killed
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{number}/cmdline").read_bytes() == command:
                        os.kill(number, signal.SIGKILL)


async def ask(client, body):
    """Return the text, or None, the error code and the seconds to wait before trying again."""
    response = await client.post("/v1/completions", json=body)
    if response.status_code != 200:
        return None, response.json()["error"]["code"], int(response.headers.get("retry-after", 1))
    if not body.get("stream"):
        return response.json()["choices"][0]["text"], None, 0
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert data.count("[DONE]") == (data[-1] == "[DONE]"), "something follows the end"
    chunks = [json.loads(chunk) for chunk in data if chunk != "[DONE]"]
    if "error" in chunks[-1]:
        return None, chunks[-1]["error"]["code"], 1
    assert data[-1] == "[DONE]", "a stream ended without an error"
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]), None, 0


def prompts():
    return [e.prompt for family in BENCHMARKS[:3] for e in load_frozen("validation", family)[: PROMPTS // 3]]


def test_a_killed_replica_loses_no_answer_and_changes_none():
    model = lastword.load("tiny-llada-base", device="cpu")
    expected = {text: lastword.generate(model, text, recipe="fast").text for text in prompts()}
    answers, errors = [], []

    async def load(fleet):
        left = [(prompts()[number % PROMPTS], number % 2 == 0) for number in range(REQUESTS)]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=fleet.url, timeout=120, limits=limits) as client:

            async def ask_until_answered():
                while left:
                    prompt, stream = left.pop()
                    body = {"model": "tiny-llada-base", "prompt": prompt, "recipe": "fast", "stream": stream}
                    while (answer := await ask(client, body))[0] is None:
                        errors.append(answer[1])
                        await asyncio.sleep(answer[2])
                    answers.append((prompt, answer[0]))

            async def kill():
                while len(answers) < 10:
                    await asyncio.sleep(0.05)
                victim = max(fleet.replicas())
                os.kill(victim, signal.SIGKILL)
                return victim

            victim, *_ = await asyncio.gather(kill(), *(ask_until_answered() for _ in range(CLIENTS)))
            return victim

    with fleet("--replicas", "2", "--batch-size", "8", model="tiny-llada-base") as started:
        assert len(started.replicas()) == 2
        victim = asyncio.run(asyncio.wait_for(load(started), 300))
        assert len(answers) == REQUESTS
        assert [prompt for prompt, text in answers if text != expected[prompt]] == []
        assert {*errors} <= {"replica_lost", "starting"}
        started.wait_for_replicas(2)
        started.wait_until(lambda health: len(started.replicas()) == 2)
        assert victim not in started.replicas()


def long_stream(pace=0.05):
    """Return a request with about 64 / pace forward passes."""
    schedule = {"name": "timesteps", "pace": pace}
    recipe = {"length": "fixed:64", "unmask": {"name": "coin-flip", "schedule": schedule}}
    return {"model": "toy", "prompt": "abc", "stream": True, "recipe": recipe}


SLOW = long_stream()


def test_a_frozen_replica_is_replaced_and_its_requests_are_answered_by_another():
    body = {"model": "toy", "prompt": "abc", "length": "fixed:8"}

    def ticks(number):
        """Return the CPU time of a process."""
        return sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:13]))

    async def freeze(fleet):
        async with httpx.AsyncClient(base_url=fleet.url, timeout=60) as client:
            expected = (await ask(client, body))[0]
            begun = [asyncio.create_task(ask(client, SLOW)) for _ in range(6)]
            while (await client.get("/health")).json()["counts"]["working"] < 6:
                await asyncio.sleep(0.02)
            before = {number: ticks(number) for number in fleet.replicas()}
            await asyncio.sleep(0.5)
            victim = max(before, key=lambda number: ticks(number) - before[number])  # has streams
            os.kill(victim, signal.SIGSTOP)
            started = time.monotonic()
            answers = await asyncio.gather(*(ask(client, body) for _ in range(8)))  # retried: nothing was sent yet
            seconds = time.monotonic() - started
            return victim, [text for text, *_ in answers], expected, seconds, [(await task)[1] for task in begun]

    with fleet("--replicas", "2") as started:
        victim, texts, expected, seconds, errors = asyncio.run(asyncio.wait_for(freeze(started), 90))
        print(f"answered {seconds:.1f} s after a replica froze; errors of streams: {errors}")
        assert texts == [expected] * 8
        assert seconds < 12  # 7 seconds, and more on a busy machine
        assert "replica_lost" in errors
        assert {*errors} <= {None, "replica_lost"}
        started.wait_until(lambda health: len(started.replicas() - {victim}) == 2)
        started.wait_until(lambda health: victim not in started.replicas(), 60)


def test_several_http_processes_share_the_port_and_drain_together():
    def listeners(fleet):
        """Return the processes that listen on the port of the server."""
        port = f":{int(fleet.url.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "0A"}
        found = set()
        for number in {fleet.process.pid, *processes_below(fleet.process.pid)}:
            with contextlib.suppress(OSError):
                if sockets & {os.readlink(link) for link in Path(f"/proc/{number}/fd").iterdir()}:
                    found.add(number)
        return found

    async def answers(fleet):
        async with httpx.AsyncClient(base_url=fleet.url, timeout=60) as client:
            slow = [asyncio.create_task(ask(client, SLOW)) for _ in range(8)]  # a connection each
            while (await client.get("/health")).json()["counts"]["working"] < 8:
                assert not any(task.done() for task in slow)
                await asyncio.sleep(0.02)
            others = listeners(fleet) - {fleet.process.pid}
            streaming = {port for port in others if established(port)}
            fleet.process.send_signal(signal.SIGTERM)
            return others, streaming, await asyncio.gather(*slow)

    def established(process):
        """Return the number of open sockets to clients of a process."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{int(started.url.rpartition(':')[2]):04X}"
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "01"}
        return len(sockets & {os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()})

    with fleet("--replicas", "1", "--http-servers", "3", replicas=1) as started:
        started.wait_until(lambda health: len(listeners(started)) == 3)
        others, streaming, done = asyncio.run(asyncio.wait_for(answers(started), 60))
        assert len(others) == 2
        assert streaming  # 8 connections all reach the first process once in 3 ** 8 runs
        assert {error for _, error, _ in done} == {None}
        assert len({text for text, *_ in done}) == 1
        assert started.process.wait(30) == 0


def test_the_server_drains_and_leaves_no_process_behind():
    async def drain(fleet):
        async with httpx.AsyncClient(base_url=fleet.url, timeout=60) as client:
            asking = asyncio.create_task(ask(client, SLOW))
            while not (await client.get("/health")).json()["counts"]["working"]:
                assert not asking.done()
                await asyncio.sleep(0.02)
            fleet.process.send_signal(signal.SIGTERM)
            while not (health := await client.get("/health")).json()["draining"]:
                await asyncio.sleep(0.02)
            return health.status_code, (await ask(client, SLOW))[1], await asking

    with fleet("--replicas", "1", "--drain-timeout", "30", replicas=1) as started:
        below = processes_below(started.process.pid)
        status, refused, (text, error, _) = asyncio.run(asyncio.wait_for(drain(started), 60))
        assert started.process.wait(30) == 0
        deadline = time.monotonic() + 15  # Ray's agents look for their parent every few seconds
        while left := [number for number in below if Path(f"/proc/{number}").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    assert (status, refused, error) == (503, "draining", None)
    assert text


def test_the_number_of_replicas_follows_the_load():
    """One, two under load, one again."""
    options = ("--replicas", "1:2", "--target-load", "1", "--upscale-delay", "1", "--downscale-delay", "3")
    body = {"model": "tiny-llada-base", "prompt": prompts()[0], "recipe": "fast"}

    async def load(fleet):
        async with httpx.AsyncClient(base_url=fleet.url, timeout=120) as client:
            done = asyncio.gather(*(ask(client, body) for _ in range(48)))
            most = 1
            while not done.done():
                most = max(most, (await client.get("/health")).json()["counts"]["replicas"])
                await asyncio.sleep(0.1)
            return most, await done

    with fleet(*options, "--batch-size", "2", model="tiny-llada-base", replicas=1) as started:
        most, answers = asyncio.run(asyncio.wait_for(load(started), 240))
        assert most == 2
        assert len({text for text, _, _ in answers}) == 1
        assert {error for _, error, _ in answers} == {None}
        started.wait_for_replicas(1)
