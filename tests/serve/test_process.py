"""`lastword serve` as a process: ports, signals and a broken engine."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

import lastword
from lastword.models.toy import Toy
from lastword.recipe.recipe import Recipe
from lastword.serve.app import create_server
from lastword.serve.engine import DecodeWorker
from tests.serve.conftest import ROOT, chunks_of, served
from tests.serve.helpers import alone, request_of, run
from tests.serve.test_load import WORDS, client_of

LONG = {"model": "toy", "length": "fixed:16", "stream": True}
TOY = Toy()


def test_a_port_that_is_in_use_ends_the_process_with_an_error():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "lastword", "serve", "--model", "toy", "--port", str(port)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"lastword: cannot listen on port {port} of 127.0.0.1 (Address already in use)")
    assert f"--port {port + 1}" in done.stderr


async def signalled(server, *, count, signals):
    """Start streams, send signals once the first has begun, and return the lines of each stream."""
    started = asyncio.Event()

    async def read(client, number):
        lines, request = [], {**LONG, "prompt": WORDS[number % len(WORDS)]}
        try:
            async with client.stream("POST", "/v1/completions", json=request) as response:
                async for line in response.aiter_lines():
                    started.set()
                    lines.append(line)
        except httpx.HTTPError:
            pass
        return lines

    async with client_of(server.url) as client:
        reading = [asyncio.create_task(read(client, number)) for number in range(count)]
        await asyncio.wait_for(started.wait(), 20)
        await asyncio.sleep(0.05)  # so that all were submitted
        server.process.send_signal(signal.SIGTERM)
        if signals == 2:
            assert "drains" in await asyncio.to_thread(server.process.stdout.readline)
            server.process.send_signal(signal.SIGTERM)
        return await asyncio.gather(*reading)


def test_sigterm_finishes_accepted_requests_and_exits():
    with served("--batch-size", 4, "--drain-timeout", 20) as server:
        streams = run(signalled(server, count=16, signals=1))
        assert server.process.wait(25) == 0
    recipe = Recipe.coerce(None).with_choices(length="fixed:16")
    for number, lines in enumerate(streams):
        text = "".join(choice["text"] for chunk in chunks_of(lines) for choice in chunk["choices"])
        assert text == alone(TOY, request_of(WORDS[number % len(WORDS)], recipe, TOY))


@pytest.mark.full
def test_a_second_sigterm_exits_at_once_and_without_a_traceback():
    with served("--batch-size", 1, "--drain-timeout", 60) as server:
        streams = run(signalled(server, count=40, signals=2))
        output, _ = server.process.communicate(timeout=10)
        assert server.process.returncode == 0
    assert sum("data: [DONE]" not in lines for lines in streams) >= 20
    assert "Traceback" not in output


def test_a_broken_engine_ends_the_process_with_an_error(monkeypatch):
    """Not a failed request: a supervisor has to restart the process."""
    model, run_pass = lastword.load("toy"), DecodeWorker.run_pass

    def broken(worker):
        if worker._model is not model:  # servers of other tests live in this process
            return run_pass(worker)
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(DecodeWorker, "run_pass", broken)
    errors = []

    def serve():
        try:
            create_server(model, name="toy", port=0).run()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(30)
    assert isinstance(errors[0].__cause__, ZeroDivisionError)
