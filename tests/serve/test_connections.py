"""Limits on connections, request heads and slow clients of a live server."""

import contextlib
import logging
import resource
import socket
import time
from functools import partial
from unittest.mock import Mock

import httpx
import pytest

from lastword.serve import app, connections
from lastword.serve.connections import (
    MAX_HEAD_BYTES,
    RESERVED_FILES,
    ConnectionTable,
    limited_protocol,
    raise_file_limit,
)
from lastword.serve.settings import ServerSettings
from tests.serve.conftest import is_idle, served, serving, wait_until
from tests.serve.test_load import LongAnswers, raw_request

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
OTHER = "127.0.0.2"  # the address of another client; all of 127.0.0.0/8 is this machine


def settings(**fields):
    return ServerSettings(drain_timeout=5.0, **fields)


@pytest.fixture
def connect():
    """`connect(server, data, client=...)` opens a connection that is closed at the end."""
    with contextlib.ExitStack() as stack:

        def opened(server, data=b"", client="127.0.0.1"):
            connection = socket.create_connection(("127.0.0.1", server.port), 5, (client, 0))
            stack.enter_context(connection).sendall(data)
            return connection

        yield opened


def read_all(connection, seconds=5):
    """Return what the server sends until it closes the connection."""
    connection.settimeout(seconds)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def is_open(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def health(server, client="127.0.0.1", timeout=5):
    with httpx.Client(transport=httpx.HTTPTransport(local_address=client), timeout=timeout) as opened:
        return opened.get(f"{server.url}/health").status_code


# ---- request heads ----

UNFINISHED = {
    "nothing": b"",
    "half a request line": b"GET /hea",
    "half a head": HEALTH,
    "half a head after a request": HEALTH + b"\r\n" + HEALTH,
    "half a body that nobody reads": b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc",
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_a_request_that_is_not_sent_in_time_is_cut_off(live, toy, connect, data):
    server = live(toy, settings=settings(client_timeout=0.4))
    start = time.monotonic()
    read_all(connect(server, data), 3)
    assert 0.2 < time.monotonic() - start < 2.5


def test_bytes_that_trickle_in_do_not_extend_the_time(live, toy, connect):
    connection = connect(live(toy, settings=settings(client_timeout=0.4)), HEALTH)
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < start + 3 and is_open(connection):
            connection.sendall(b"a")
    assert time.monotonic() - start < 2.5


def test_an_answer_may_take_longer_than_the_head(live, connect):
    server = live(LongAnswers(0.02), settings=settings(client_timeout=0.4))
    assert b"200 OK" in read_all(connect(server, raw_request().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))


@pytest.mark.parametrize("piece", [1000, 10 * MAX_HEAD_BYTES], ids=["pieces", "whole"])
@pytest.mark.parametrize("line", [b"a", b"a: b\r\n"], ids=["value", "lines"])
def test_a_head_is_limited_in_bytes(live_toy, connect, line, piece):
    connection = connect(live_toy)
    data = HEALTH + b"X: " + line * (3 * MAX_HEAD_BYTES // len(line)) + b"\r\n\r\n"
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])
            time.sleep(0.001)
    assert b" 200 " not in read_all(connection)


def test_each_request_of_a_connection_has_the_whole_limit(live, toy, connect):
    connection = connect(live(toy, settings=settings(max_body_bytes=100)))
    for _ in range(6):
        connection.sendall(HEALTH + b"X: " + b"a" * 8000 + b"\r\n\r\n")
        received = b""
        while not received.endswith(b"}}"):  # of the body
            part = connection.recv(1000)
            assert part
            received += part
        assert b" 200 " in received


def test_a_head_that_is_too_long_is_answered_with_the_limit(live_toy, connect):
    answer = read_all(connect(live_toy, HEALTH + b"X: " + b"a" * (MAX_HEAD_BYTES + 1)))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"The request is not valid HTTP, or its head is over 16384 bytes.")


def test_chunks_have_a_limited_overhead(live, toy, connect):
    """Each byte of the body brings a kilobyte with it."""
    server = live(toy, settings=settings(max_body_bytes=10_000))
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = connect(server, head)
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            connection.sendall(b"1;" + b"x" * 1000 + b"\r\na\r\n")
    assert b"404" in read_all(connection, 2)
    assert health(server) == 200


def test_a_malformed_chunk_after_the_answer_closes_the_connection_without_an_error(live_toy, connect, caplog):
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = connect(live_toy, head)
    assert b"404" in connection.recv(1000)
    with caplog.at_level(logging.ERROR):
        connection.sendall(b"zz\r\n")
        read_all(connection)
    assert not caplog.records


def test_an_upgrade_to_a_websocket_is_an_ordinary_request(live_toy, connect):
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    assert b" 200 OK" in read_all(connect(live_toy, HEALTH + upgrade + key))


# ---- the number of connections ----


def test_a_connection_too_many_replaces_the_oldest_that_sends_nothing(live, toy, connect, caplog):
    server = live(toy, settings=settings(max_connections=20, max_connections_per_client=4))
    with caplog.at_level(logging.WARNING):
        opened = [connect(server, HEALTH) for _ in range(6)]
        wait_until(lambda: [is_open(connection) for connection in opened] == [False] * 2 + [True] * 4)
        assert health(server) == 200
    assert not is_open(opened[2])
    assert is_open(opened[3])
    numbers = [int(record.message.split()[0]) for record in caplog.records]
    assert numbers == [1, 2]  # a line for each power of two: three connections were closed


def test_a_client_with_many_connections_costs_other_clients_none(live, toy, connect):
    server = live(toy, settings=settings(max_connections=6, max_connections_per_client=6))
    others = [connect(server, client=OTHER)]
    others += [connect(server) for _ in range(5)]
    wait_until(lambda: all(map(is_open, others)))
    others += [connect(server) for _ in range(5)]
    wait_until(lambda: sum(map(is_open, others)) == 6)
    assert is_open(others[0])
    assert health(server, client="127.0.0.3") == 200
    assert is_open(others[0])


def test_a_connection_replaces_one_at_most_also_before_that_one_is_closed():
    """The event loop reports later that a connection was closed."""
    closed, counted = [], []
    table = ConnectionTable(settings(max_connections=2, max_connections_per_client=2), lambda: counted.append(1))
    for name in "abcd":
        connection = Mock(address="10.0.0.1", received=0)
        connection.transport.abort = partial(closed.append, name)
        table.add(connection)
        table.set_waiting(connection, True)
    assert closed == ["a", "b"]
    assert len(counted) == 2


def test_a_request_in_progress_is_not_replaced(live, connect):
    model = LongAnswers(0.01)
    server = live(model, settings=settings(max_connections=2, max_connections_per_client=2))
    streams = [connect(server, raw_request(stream=True)) for _ in range(2)]
    for stream in streams:
        assert b"200 OK" in stream.recv(200)
    assert not is_open(connect(server, HEALTH + b"\r\n"))
    received = b""
    while b"[DONE]" not in received:
        received += streams[0].recv(65536)
    assert health(server) == 200  # the first connection is idle now and can be replaced
    assert is_open(streams[1])


def test_bodies_that_do_not_arrive_are_limited_together(live, toy, connect):
    """There is room for two requests of 20,000 bytes; connections without a part of a body are kept."""
    server = live(toy, settings=settings(max_body_bytes=20_000, max_queue_size=1, max_batch_size=1))
    idle = connect(server, b"GET /health HTTP/1.1\r\n")
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    opened = [connect(server, request + b"Content-Length: 19000\r\n\r\n" + b" " * 18000) for _ in range(3)]
    wait_until(lambda: [is_open(connection) for connection in opened] == [False, True, True])
    assert is_open(idle)
    assert health(server) == 200


def test_connections_that_ended_are_forgotten(live, toy, connect, monkeypatch):
    protocols = []
    monkeypatch.setattr(
        app, "limited_protocol", lambda *options: protocols.append(limited_protocol(*options)) or protocols[0]
    )
    server = live(toy, settings=settings(client_timeout=0.4))
    for data in [*UNFINISHED.values(), b"\0", HEALTH + b"\r\n", raw_request(), raw_request(stream=True)]:
        connect(server, data)
    for _ in range(5):
        connect(server, raw_request(stream=True)).close()
    table = protocols[0].table
    wait_until(lambda: table._per_client["127.0.0.1"] == len(table._connections) > 0)
    wait_until(lambda: not table._connections, 8)
    assert (table._bytes, table._waiting, table._per_client) == (0, {}, {})
    wait_until(lambda: is_idle(server.engine))


def test_slow_clients_do_not_delay_the_end_of_the_server(toy, connect, caplog):
    """Requests in progress have five seconds at the end."""
    with serving(toy, settings=settings(client_timeout=20)) as server:
        opened = [connect(server, data) for data in [*UNFINISHED.values(), raw_request()[:-5]]]
        wait_until(lambda: all(map(is_open, opened)))
        start = time.monotonic()
    assert time.monotonic() - start < 2.5
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ---- open files ----


LIMITS = [  # soft and hard limit, then the soft limit afterwards and the returned one
    ((1024, 20_000), (5000, 5000)),
    ((1024, 4096), (4096, 4096)),
    ((1024, resource.RLIM_INFINITY), (5000, 5000)),
    ((20_000, 20_000), (20_000, 5000)),
    ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, 5000)),
]


@pytest.mark.parametrize(("limits", "expected"), LIMITS)
def test_the_limit_of_open_files_is_raised_as_far_as_needed(limits, expected, monkeypatch):
    current = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: current[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: current.append(pair))
    assert (raise_file_limit(5000), current[-1]) == (expected[1], (expected[0], limits[1]))


def test_a_limit_of_open_files_that_cannot_be_raised_is_returned(monkeypatch):
    def refuse(kind, pair):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 20_000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit(5000) == 256


def test_the_limit_of_open_files_limits_connections(live, toy, connect, monkeypatch, caplog):
    monkeypatch.setattr(connections, "raise_file_limit", lambda needed: RESERVED_FILES + 3)
    with caplog.at_level(logging.WARNING):
        server = live(toy, settings=settings(max_connections_per_client=100))
    assert caplog.records[0].message == "at most 3 connections: the limit of open files is 67"
    opened = [connect(server) for _ in range(5)]
    wait_until(lambda: sum(map(is_open, opened)) == 3)
    assert health(server) == 200


@pytest.mark.full
def test_2000_connections_of_hostile_clients_do_not_delay_others(connect):
    """With half as many open files allowed as connections, which the server changes."""
    kinds = [b"", b"GET /hea", HEALTH + b"X: " + b"a" * 9000, raw_request()[:-5]]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
        try:
            server = stack.enter_context(served())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        server.port = int(server.url.rpartition(":")[2])
        opened = [connect(server, kinds[number % len(kinds)]) for number in range(2000)]
        opened += [connect(server, raw_request(stream=True)) for _ in range(40)]
        health(server, timeout=60)  # after the requests that arrived before it
        seconds = []
        for _ in range(20):
            start = time.monotonic()
            assert health(server) == 200
            seconds.append(time.monotonic() - start)
        assert sorted(seconds)[10] < 0.5
        assert sum(map(is_open, opened[:40])) == 40  # they are held, not closed
        body = {"model": "toy", "prompt": "abc", "length": "fixed:8"}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
