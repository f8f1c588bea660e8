"""Servers for tests: a live one in a thread, one without a network, and `lastword serve` as a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

import lastword
from lastword.serve.settings import ServerSettings

ROOT = Path(__file__).parents[2]
SETTINGS = ServerSettings(drain_timeout=5.0)


@contextlib.contextmanager
def serving(model, *, name="toy", keys=(), settings=SETTINGS, send_buffer=None, wrap=None):
    """Run a server on a free port of 127.0.0.1; `wrap` may add middleware to its application."""
    from lastword.serve.app import Server
    from lastword.serve.engine import ServerEngine
    from lastword.serve.serving import ModelService

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listener.bind(("127.0.0.1", 0))
    engine = ServerEngine(model, settings)
    server = Server(ModelService(engine, name), engine, name=name, settings=settings, keys=keys)
    if wrap is not None:
        wrap(server.app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started and engine.state == "ready")
    port = listener.getsockname()[1]
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", port=port, engine=engine, name=name)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)


def is_idle(engine):
    return engine.num_unfinished == 0


@pytest.fixture
def live():
    """`live(model, keys=..., settings=...)` starts a server, which stops at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(serving(*args, **options))


@pytest.fixture(scope="session")
def live_toy(toy):
    """A server of the toy model for all tests that do not change it."""
    with serving(toy) as server:
        yield server


@pytest.fixture(scope="session")
def instruct():
    return lastword.load("tiny-llada-instruct", device="cpu")


@pytest.fixture(scope="session")
def live_instruct(instruct):
    """A server of a model with a chat template."""
    with serving(instruct, name="tiny-llada-instruct") as server:
        yield server


@pytest.fixture
def asgi(toy):
    """`async with asgi(model, ...) as client`: the application without a network, with its engine."""
    from lastword.serve.app import create_app
    from lastword.serve.engine import ServerEngine
    from lastword.serve.serving import ModelService

    @contextlib.asynccontextmanager
    async def client(model=toy, *, name="toy", settings=SETTINGS):
        engine = ServerEngine(model, settings)
        engine.start()
        app = create_app(ModelService(engine, name), name=name, settings=settings)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as opened:
            opened.engine = engine
            yield opened
        await engine.stop()

    return client


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads):
    """A `Browser` for all tests of a module."""
    from tests.serve.browser import Browser

    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("needs the program chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--hide-scrollbars")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # its own sandbox does not run as root
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def page():
    """A `page_server` for all tests of a module."""
    from tests.serve.browser import page_server

    with page_server() as running:
        yield running


class Process:
    """`lastword serve` as an operator starts it."""

    def __init__(self, *options, model="toy"):
        command = [sys.executable, "-c", "from lastword.cli import main; main()", "serve"]
        self.process = subprocess.Popen(
            [*command, "--model", model, "--port", "0", *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        self.lines = [self.process.stdout.readline()]
        while self.lines[-1] and not (match := re.search(r" at (http://\S+)$", self.lines[-1].strip())):
            self.lines.append(self.process.stdout.readline())
        assert match, self.lines
        self.url = match[1]


@contextlib.contextmanager
def served(*options, **more):
    server = Process(*options, **more)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait(10)


def chunks_of(lines):
    """Return the chunks of a complete stream."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(chunk) for chunk in data[:-1]]
