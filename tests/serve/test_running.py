"""The server as a process: where it cannot listen, and how it leaves."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

import lastword
from lastword.serve.app import create_server
from lastword.serve.engine import DecodeWorker

SLOW = {  # 64,000 passes: whoever asks waits until the server stops
    "model": "toy",
    "prompt": "abc",
    "recipe": {
        "length": "fixed:64",
        "unmask": {"name": "coin-flip", "schedule": {"name": "timesteps", "pace": 0.001}},
    },
}


def started(*options):
    """`lastword serve` of the toy model in a process of its own."""
    code = "from lastword.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--model", "toy", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_port_that_is_taken_ends_the_process_and_does_not_crash_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = started("--port", str(taken.getsockname()[1]))
        said, _ = process.communicate(timeout=60)
        number = taken.getsockname()[1]
    assert process.returncode == 1
    assert said == (
        f"lastword: port {number} of 127.0.0.1 cannot be listened at (Address already in use); give another, "
        f"such as --port {number + 1}, or --port 0 for any that is free\n"
    )


@pytest.mark.full
def test_a_second_signal_stops_at_once_and_without_a_traceback():
    process = started("--port", "0", "--drain", "60")
    try:
        port = re.search(r":(\d+)$", process.stdout.readline().strip())[1]
        found = []

        def ask():
            url = f"http://127.0.0.1:{port}/v1/completions"
            found.append(httpx.post(url, json=SLOW, timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        health = f"http://127.0.0.1:{port}/health"
        while not httpx.get(health).json()["counts"]["working"]:
            pass
        process.send_signal(signal.SIGTERM)
        assert "drains" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
        asking.join()
    finally:
        process.kill()
    assert process.returncode == 0
    assert found == [503]
    assert "Traceback" not in said


def test_an_engine_that_breaks_ends_the_process_with_an_error(monkeypatch):
    """Not a request's fault but the engine's own: whoever supervises the process starts it again."""

    model, work = lastword.load("toy"), DecodeWorker.work

    def broken(worker):
        if worker._model is not model:  # other tests' servers live in this process
            return work(worker)
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(DecodeWorker, "work", broken)
    found = []

    def run():
        try:
            create_server(model, name="toy", port=0).run()
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    (error,) = found
    assert isinstance(error.__cause__, ZeroDivisionError)
