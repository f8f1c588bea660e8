"""Http: requests to a server of the OpenAI API, with the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from lastword.cli.chatting.sse import events
from lastword.errors import LastwordError, SettingError

REACHING = 10.0  # seconds to reach a server
READING = 3600.0  # seconds between two pieces of an answer: a queue may be long
MOST_BYTES = 10**7  # of a reply, and of an event
DONE = "[DONE]"


class Unanswered(LastwordError):
    """A server that could not be reached, or did not answer, and what it said; `code` is its own."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Http:
    """A server's address and the key to it. There is no redirect to follow and no proxy in between."""

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as wrong:
            raise SettingError(f"--url {url!r:.200} is no address ({wrong})") from wrong
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise SettingError(
                f"--url {url!r:.200} is no address of a server; give one such as http://127.0.0.1:8000"
            )
        if key and not (key.isascii() and key.isprintable()):
            raise SettingError("the API key holds letters that no header can; give it in ASCII")
        self.url = url
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = host, port
        # Clients of the OpenAI API are given the address with /v1.
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> Any:
        """What is there, as data."""
        with self._reply("GET", path, None) as reply:
            return _data(reply.read(MOST_BYTES))

    def events(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The events that answer a request, as data. Whoever stops listening has hung up."""
        with self._reply("POST", path, json.dumps(body).encode()) as reply:
            for event in events(iter(lambda: reply.readline(MOST_BYTES), b"")):
                if event == DONE:
                    return
                data = _data(event)
                if isinstance(data, dict) and data.get("error"):
                    raise _said(data, None, None)
                yield data
        raise Unanswered(f"{self.url} hung up before the answer was complete; ask again")

    @contextmanager
    def _reply(self, method: str, path: str, body: bytes | None) -> Iterator[HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=REACHING)
        try:
            connection.connect()
            connection.sock.settimeout(READING)
            connection.request(method, self._path + path, body, self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                after = reply.getheader("Retry-After")
                raise _said(_data(reply.read(MOST_BYTES)), reply.status, after)
            yield reply
        except (OSError, HTTPException) as lost:
            reason = str(lost) or type(lost).__name__
            raise Unanswered(f"{self.url} could not be asked ({reason}); is the server running?") from lost
        finally:
            connection.close()


def _data(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _said(data: Any, status: int | None, after: str | None) -> Unanswered:
    """What the server says of itself, if it says it in OpenAI's shape."""
    error = data.get("error") if isinstance(data, dict) else None
    told = error if isinstance(error, dict) else {}
    message = " ".join(str(told.get("message") or "no reason was given").split())
    number = "" if status is None else f" ({status})"
    wait = f"; it asks to wait {after} seconds" if after else ""
    code = told.get("code")
    return Unanswered(f"the server{number}: {message}{wait}", code if isinstance(code, str) else None)
