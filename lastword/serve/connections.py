"""The HTTP protocol of the server: limits on the number of connections, on request heads and on slow clients."""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lastword.serve.settings import ServerSettings

log = logging.getLogger("lastword.serve")

MAX_HEAD_BYTES = 16 * 2**10  # of a request line with its headers, or of one chunk header
MAX_OVERHEAD = 8  # received bytes per byte of a body; chunks of one byte need 6
RESERVED_FILES = 64  # open files that are not connections


class ConnectionTable:
    """The open connections of a server and the bytes of their unanswered requests.

    A connection over a limit replaces one whose client the server waits for: the oldest one of the same client or, for
    the limits of all clients together, of the client that has the most. A request in progress is never cut off.
    """

    def __init__(self, settings: ServerSettings, count_refused: Callable[[], None] = lambda: None) -> None:
        files = raise_file_limit(settings.max_connections + RESERVED_FILES)
        self._max = max(1, min(settings.max_connections, files - RESERVED_FILES))
        if self._max < settings.max_connections:
            log.warning("at most %d connections: the limit of open files is %d", self._max, files)
        self._max_per_client = settings.max_connections_per_client or max(1, self._max // 2)
        self._max_bytes = (settings.max_queue_size + settings.max_batch_size) * settings.max_body_bytes
        self._bytes = self._num_replaced = 0
        self._count_refused = count_refused
        self._connections: set[LimitedProtocol] = set()
        self._per_client: Counter[str] = Counter()  # by address
        self._waiting: dict[str, dict[LimitedProtocol, None]] = {}  # for the client, by address; the oldest first

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection, and abort the one that it replaces, or the new one if nothing can be replaced."""
        client = connection.address
        has_room = self._per_client[client] < self._max_per_client or self._replace(client)
        if has_room and len(self._connections) >= self._max:
            has_room = self._replace()
        if not has_room:
            connection.transport.abort()
            self._count_refused()
        self._connections.add(connection)
        self._per_client[client] += 1

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a connection that was closed or replaced."""
        self.set_waiting(connection, False)
        self.count_bytes(connection, -connection.received)
        if connection in self._connections:
            self._connections.remove(connection)
            self._per_client -= Counter([connection.address])  # without clients that have none left

    def set_waiting(self, connection: LimitedProtocol, waiting: bool) -> None:
        """Set whether the server waits for the client of a connection, to send or to read."""
        connections = self._waiting.setdefault(connection.address, {})
        if waiting:
            connections.setdefault(connection)
        else:
            connections.pop(connection, None)
        if not connections:
            del self._waiting[connection.address]

    def count_bytes(self, connection: LimitedProtocol, number: int) -> None:
        """Count received bytes, and abort waiting connections with a part of a body while there are too many bytes."""
        connection.received += number
        self._bytes += number
        while number > 0 and self._bytes > self._max_bytes and self._replace(min_bytes=MAX_HEAD_BYTES + 1):
            pass

    def _replace(self, client: str | None = None, *, min_bytes: int = 0) -> bool:
        """Abort the oldest waiting connection that sent `min_bytes`, of a client or of the one that has the most.

        Return False if there is no such connection.
        """
        by_client = sorted(self._waiting.values(), key=len, reverse=True)
        groups = by_client if client is None else [self._waiting.get(client, {})]
        oldest = next((item for group in groups for item in group if item.received >= min_bytes), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.transport.abort()
        self._count_refused()
        self._num_replaced += 1
        if self._num_replaced.bit_count() == 1:  # powers of two, so that a flood of clients is not one of lines
            log.warning("%d waiting connections were closed, because too many were open", self._num_replaced)
        return True


class LimitedProtocol(H11Protocol):
    """An HTTP/1.1 connection whose client has `client_timeout` seconds to send a request head or to read."""

    table: ConnectionTable  # set by `limited_protocol`
    settings: ServerSettings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.received = 0  # bytes of the current request
        self._deadline: TimerHandle | None = None
        self.table.add(self)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data in pieces, so that the limit of the head also holds for a head that arrives at once."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            piece = data[start : start + MAX_HEAD_BYTES]
            self.table.count_bytes(self, len(piece))
            if self.received > MAX_HEAD_BYTES + MAX_OVERHEAD * self.settings.max_body_bytes:
                self.transport.abort()
            if self.transport.is_closing():
                return
            super().data_received(piece)
        if self.conn.their_state is h11.DONE:  # chunk headers are not kept
            kept = MAX_HEAD_BYTES + self.settings.max_body_bytes
            self.table.count_bytes(self, -max(0, self.received - kept))
        self._update()

    def on_response_complete(self) -> None:
        self.table.count_bytes(self, -self.received)
        super().on_response_complete()
        self._update()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or close the connection if its answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(f"The request is not valid HTTP, or its head is over {MAX_HEAD_BYTES} bytes.")
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection once its request is answered, or now if the request is incomplete."""
        if self.conn.their_state is h11.SEND_BODY and not self.cycle.response_started:
            self.transport.abort()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Wait for the client to read; asyncio calls this if its buffer is full, and later `resume_writing`."""
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    def _update(self) -> None:
        """Start or stop the time that the client has, and set whether this connection may be replaced."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and not self.flow.write_paused:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.settings.client_timeout, self.transport.abort)
        is_sending = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        self.table.set_waiting(self, is_sending or self.flow.write_paused)


def limited_protocol(settings: ServerSettings, count_refused: Callable[[], None]) -> type[LimitedProtocol]:
    """Return the protocol class of one server, whose connections share a table."""
    table = ConnectionTable(settings, count_refused)
    return type("HttpProtocol", (LimitedProtocol,), {"settings": settings, "table": table})


def raise_file_limit(needed: int) -> int:
    """Raise the limit of open files as far as needed and allowed; return it, or `needed` if it is larger."""
    try:
        import resource
    except ImportError:  # Windows
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(OSError, ValueError):  # the system allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed
    return soft
