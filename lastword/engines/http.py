"""Http: JSON to a server and back, tried again where that helps."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from lastword.errors import EngineError, ExtraError, LastwordError, SettingError, install_command
from lastword.io.schema import parse_json_object

AGAIN = (429, 502, 503, 504)  # statuses that may be otherwise in a while
LONGEST_WAIT = 60.0  # seconds until the next try, at most
TRIES_TO_CONNECT = 4
READ = 3600.0  # seconds that one answer may take


class Refusal(LastwordError):
    """A request that the server will not answer, and what it says about it."""

    def __init__(self, status: int, words: str, code: str | None) -> None:
        super().__init__(f"the server refused it ({status}): {words}")
        self.status, self.code = status, code


class Http:
    """A connection to the API of a server; many threads may use it."""

    def __init__(self, base_url: str, key: str | None, patience: float) -> None:
        self.base, self.patience = base_url.rstrip("/"), patience
        if not self.base.startswith(("http://", "https://")):
            raise SettingError(
                f"--base-url {base_url} was given; it begins with http:// or https://, mostly ends with /v1"
            )
        try:
            import httpx
        except ImportError as absent:
            raise ExtraError(
                f"--engine openai needs httpx, which is not installed: {install_command('ray')}"
            ) from absent
        self._httpx, self._stopped = httpx, threading.Event()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.Client(headers=headers, timeout=httpx.Timeout(READ, connect=10.0), limits=limits)

    def close(self) -> None:
        self._client.close()

    def stop(self) -> None:
        """Whoever waits to try again gives up."""
        self._stopped.set()

    def go_on(self) -> None:
        self._stopped.clear()

    def get(self, path: str) -> dict[str, Any]:
        return self._answer("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply as data, with the `seconds` of the try that was answered."""
        return self._answer("POST", path, body)

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        ends = time.monotonic() + self.patience
        unreached = tries = 0
        while True:
            tries += 1
            began = time.perf_counter()
            try:
                reply = self._client.request(method, self.base + path, json=body)
            except self._httpx.TransportError as gone:
                unreached += 1
                if unreached >= TRIES_TO_CONNECT or self._stopped.is_set():
                    raise EngineError(
                        f"{self.base} cannot be reached ({type(gone).__name__}: {gone}); see that the server "
                        "runs and the URL is right, then give the same command again: what was answered is "
                        "kept"
                    ) from gone
                self._pause(tries, None)
                continue
            if reply.status_code == 200:
                return _object(self.base, reply) | {"seconds": time.perf_counter() - began}
            words, code = _refusal(reply)
            if reply.status_code in (401, 403):
                raise EngineError(
                    f"{self.base} wants a key ({words}); put it into the environment as LASTWORD_API_KEY"
                )
            if reply.status_code == 404 and code != "model_not_found" and method == "GET":
                raise EngineError(
                    f"{self.base}{path} is not there; a base URL mostly ends with /v1 ({words})"
                )
            late = time.monotonic() > ends or self._stopped.is_set()
            if reply.status_code not in AGAIN or late:
                raise Refusal(reply.status_code, words, code)
            self._pause(tries, reply.headers.get("Retry-After"))

    def _pause(self, tries: int, told: str | None) -> None:
        """As long as the server says, or longer every time; never quite as long as the others."""
        try:
            seconds = float(told) if told is not None else 0.25 * 2**tries
        except ValueError:  # a date: servers of this kind send seconds
            seconds = 0.25 * 2**tries
        seconds = min(max(seconds, 0.0), LONGEST_WAIT)
        self._stopped.wait(seconds * random.uniform(1.0, 1.25))


def _object(base: str, reply: Any) -> dict[str, Any]:
    try:
        return parse_json_object(reply.content)
    except ValueError as wrong:
        raise EngineError(
            f"{base} answered with something other than JSON ({wrong}); is it a server of OpenAI's API?"
        ) from wrong


def _refusal(reply: Any) -> tuple[str, str | None]:
    """What an error says, and its code."""
    try:
        error = parse_json_object(reply.content).get("error")
    except ValueError:
        error = None
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    words = str(error.get("message") or reply.text or reply.reason_phrase)
    return " ".join(words.split())[:500], code if isinstance(code, str) else None
