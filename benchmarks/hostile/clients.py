"""Hostile clients: `python -m benchmarks.hostile.clients NAME PORT SECONDS` runs one kind and ends by itself.

Each connection attacks until the server closes it, and is then opened again, until the seconds are over.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

KEY = "key of the benchmark"
MODEL = "tiny-llada-instruct"
UNREAD_BYTES = 1024  # that a client which does not read takes into its buffers
PAUSE = 0.2  # seconds before a connection that was closed is opened again

Attack = Callable[[StreamReader, StreamWriter], Awaitable[None]]


def head(path: str = "/health", *lines: str, method: str = "GET", key: str = KEY) -> bytes:
    """Return a request head without its last line."""
    fixed = (f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}")
    return "".join(f"{line}\r\n" for line in (*fixed, *lines)).encode()


def post(body: bytes, length: int | None = None, key: str = KEY) -> bytes:
    """Return a completion request; `length` replaces the true Content-Length."""
    lines = ("Content-Type: application/json", f"Content-Length: {len(body) if length is None else length}")
    return head("/v1/completions", *lines, method="POST", key=key) + b"\r\n" + body


def completion(**fields: object) -> bytes:
    """Return the body of a completion request."""
    return json.dumps({"model": MODEL, "prompt": "Once", **fields}, separators=(",", ":")).encode()


async def hold(data: bytes, reader: StreamReader, writer: StreamWriter) -> None:
    """Send data, then nothing, until the server closes the connection."""
    writer.write(data)
    while await reader.read(65536):
        pass


async def drip(data: bytes, piece: bytes, pause: float, reader: StreamReader, writer: StreamWriter) -> None:
    """Send data, then a piece after every pause."""
    writer.write(data)
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def do_not_read(data: bytes, reader: StreamReader, writer: StreamWriter) -> None:
    """Send data and never read the responses."""
    writer.write(data)
    await asyncio.sleep(3600)


async def repeat(data: bytes, reader: StreamReader, writer: StreamWriter) -> None:
    """Send data again after each piece of a response."""
    while True:
        writer.write(data)
        await writer.drain()
        if not await reader.read(65536):
            return


async def read_once(data: bytes, reader: StreamReader, writer: StreamWriter) -> None:
    """Send data, and disconnect after the first piece of the response."""
    writer.write(data)
    await reader.read(65536)


@dataclass(frozen=True)
class HostileKind:
    """A kind of hostile client and its number of connections."""

    description: str
    attack: Attack
    connections: int = 1000
    reads: bool = True


CHUNKED = head("/v1/completions", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST")
TEXT = completion(prompt="abc def ghi " * 82_000)
KINDS = {
    "silent": HostileKind("connect and send nothing", partial(hold, b"")),
    "silent-3000": HostileKind("the same, more than one client may have", partial(hold, b""), 3000),
    "request-line": HostileKind("half a request line", partial(hold, b"POST /v1/comp")),
    "slow-head": HostileKind("a header, byte by byte", partial(drip, head() + b"X: ", b"a", 0.5)),
    "endless-header": HostileKind("an endless header", partial(drip, head() + b"X: ", b"a" * 4096, 0.2)),
    "endless-headers": HostileKind("endless header lines", partial(drip, head(), b"X: y\r\n" * 500, 0.2)),
    "slow-body": HostileKind("a body, byte by byte", partial(drip, post(b"", 900_000), b" ", 0.5)),
    "half-body": HostileKind("a body that stops", partial(hold, post(b" " * 200_000, 900_000))),
    "wrong-length": HostileKind("a body longer than its Content-Length", partial(read_once, post(completion(), 9)), 64),
    "chunk-extensions": HostileKind(
        "16 kB of chunk extension per byte",
        partial(drip, CHUNKED + b"\r\n", b"1;" + b"x" * 16_000 + b"\r\n \r\n", 0.01),
        64,
    ),
    "large-body": HostileKind("bodies of 10 MB", partial(read_once, post(b" " * 10**7)), 16),
    "keep-alive": HostileKind("one request, then an idle connection", partial(hold, head() + b"\r\n")),
    "pipelined": HostileKind("100 pipelined requests at a time", partial(repeat, (head() + b"\r\n") * 100), 64),
    "unread-page": HostileKind(
        "pages that are never read", partial(do_not_read, (head("/") + b"\r\n") * 20), reads=False
    ),
    "unread-stream": HostileKind(
        "streams that are never read",
        partial(do_not_read, post(completion(stream=True, diffusing=True, n=2, length="fixed:16"))),
        64,
        reads=False,
    ),
    "cancelled": HostileKind(
        "streams, cancelled at the first chunk", partial(read_once, post(completion(stream=True))), 8
    ),
    "long-prompts": HostileKind("prompts of 990 kB", partial(repeat, post(TEXT)), 8),
    "nested-lists": HostileKind(
        "900 kB of nested lists", partial(repeat, post(completion(prompt=[[[1]]] * 150_000))), 8
    ),
    "connects": HostileKind("connect and disconnect", partial(read_once, b"\r\n\r\n"), 256),
    "wrong-keys": HostileKind("wrong keys", partial(repeat, post(completion(), key="wrong")), 64),
}


async def keep_attacking(kind: HostileKind, port: int) -> None:
    """Attack with one connection, again and again."""
    while True:
        with suppress(OSError):
            connection = connect(port, kind.reads)
            reader, writer = await asyncio.open_connection(sock=connection, limit=UNREAD_BYTES)
            try:
                await kind.attack(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(PAUSE)


def connect(port: int, reads: bool) -> socket.socket:
    """Return a connection; if the client does not read, it takes hardly any data into its buffer."""
    connection = socket.socket()
    connection.settimeout(1.0)
    if not reads:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
    connection.connect(("127.0.0.1", port))
    return connection


async def attack_for(kind: HostileKind, port: int, seconds: float) -> None:
    """Attack with all connections of a kind for some seconds."""
    tasks = [asyncio.ensure_future(keep_attacking(kind, port)) for _ in range(kind.connections)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(attack_for(KINDS[sys.argv[1]], int(sys.argv[2]), float(sys.argv[3])))
