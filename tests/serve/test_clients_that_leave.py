"""Clients that leave, and clients that do not read: neither keeps the engine busy."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest

from lastword.models.toy import Toy
from lastword.serve.app import ClientDisconnected, cancel_on_disconnect
from lastword.serve.settings import ServerSettings


class Slow(Toy):
    """The toy, ten milliseconds a pass; it counts them."""

    def __init__(self, seconds=0.01):
        super().__init__(hazard=0.0)
        self.passes, self.seconds = 0, seconds

    def __call__(self, *args, **options):
        self.passes += 1
        time.sleep(self.seconds)
        return super().__call__(*args, **options)


def request(body, path="/v1/completions"):
    content = json.dumps({"model": "toy", "prompt": "abc", **body}).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


def until(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def is_idle(engine):
    return not any(engine.counts().values())


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_engine_between_two_passes(live, stream):
    model = Slow(0.05)
    server = live(model)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request({"stream": stream, "length": "fixed:64", "n": 4}))
        if stream:
            assert b"200 OK" in client.recv(1000)
        else:
            assert until(lambda: model.passes > 2)
    left = model.passes
    assert until(lambda: is_idle(server.engine), 3)
    time.sleep(0.2)
    assert model.passes <= left + 4 * 2  # of 4 x 64: at most a pass or two of each began meanwhile
    assert server.engine.state == "ready"


def test_who_does_not_read_is_cut(live):
    model = Slow(0.002)
    limits = ServerSettings(reading=0.5, drain=5.0)
    server = live(model, limits=limits, send_buffer=4096)
    body = {"stream": True, "diffusing": True, "length": "fixed:64", "n": 16}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request(body))
        assert until(lambda: is_idle(server.engine) and model.passes > 5, 15)
        assert model.passes < 16 * 64  # those that were not begun never were
        client.settimeout(5)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.recv(65536):
                got += chunk
    assert b"200 OK" in got
    assert b"[DONE]" not in got


def test_who_reads_slowly_but_does_gets_it_all(live):
    server = live(Slow(0.001), limits=ServerSettings(reading=1.0, drain=5.0), send_buffer=4096)
    body = {"stream": True, "diffusing": True, "length": "fixed:64", "n": 2}
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request(body))
        got = b""
        while b"[DONE]" not in got:
            chunk = client.recv(16384)
            assert chunk, got[-300:]
            got += chunk
            time.sleep(0.005)


def test_a_body_that_does_not_come_is_not_waited_for(live, toy):
    server = live(toy, limits=ServerSettings(reading=0.3, drain=5.0))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request({})[:-5])
        client.settimeout(5)
        assert b"408" in client.recv(1000)


def test_many_who_leave_keep_nobody_out(live):
    model = Slow(0.002)
    server = live(model)

    def leave():
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(request({"stream": True, "length": "fixed:64"}))
            client.settimeout(5)
            client.recv(100)

    leaving = [threading.Thread(target=leave) for _ in range(8)]
    for thread in leaving:
        thread.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request({"length": "fixed:4"}))
        client.settimeout(10)
        assert b"200 OK" in client.recv(1000)
    for thread in leaving:
        thread.join()
    assert until(lambda: is_idle(server.engine))


def test_work_is_cancelled_and_cleaned_up_before_who_left_is_forgotten():
    cleaned = []

    async def work():
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def receive():
        return {"type": "http.disconnect"}

    async def stay():
        await asyncio.sleep(10)

    async def quick():
        return 3

    with pytest.raises(ClientDisconnected):
        asyncio.run(cancel_on_disconnect(receive, work()))
    assert cleaned == [True]
    assert asyncio.run(cancel_on_disconnect(stay, quick())) == 3
