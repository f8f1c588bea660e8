"""The access log: an id, counters and, if wanted, a log line for every HTTP request."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lastword.serve.metrics import HttpMetrics
from lastword.serve.request import ServerError

log = logging.getLogger("lastword.access")

ID_HEADER = "X-Request-ID"
VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OTHER = "other"  # the label of unknown paths and methods, so that clients cannot add labels
MAX_PATH_LENGTH = 200  # characters of a path in the log
DISCONNECTED = 499  # nginx's status of a request whose client closed the connection


def configure_access_log(log_format: str) -> None:
    """Write the access log of this process to standard error, unless `log_format` is off."""
    if log_format != "off" and not log.handlers:
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())
        log.propagate = False


@dataclass
class RequestRecord:
    """The facts about an HTTP request for the metrics and the log; handlers change `request.state.record`."""

    id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None  # of the answer that finished last
    error: str | None = None  # the code of the error that was sent
    metadata: Mapping[str, str] | None = None

    def observe(self, body: Mapping[str, Any]) -> None:
        """Record the usage and the finish reason of a response, or of a chunk of a stream."""
        if usage := body.get("usage"):
            self.prompt_tokens, self.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in body["choices"]:
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def error_response(connection: HTTPConnection, error: Exception) -> JSONResponse:
    """Return the response to an error, in OpenAI's format, and record its code."""
    failure = ServerError.of(error)
    connection.state.record.error = failure.code
    return JSONResponse(failure.body, failure.kind.status, failure.headers)


class AccessLog:
    """The outermost middleware: it returns an `X-Request-ID`, answers HEAD, and counts and logs all requests.

    An id of the client is accepted if it matches `VALID_ID`. Query strings, headers and bodies are not logged, because
    they may contain keys and prompts.
    """

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics, routes: Sequence[BaseRoute], log_format: str) -> None:
        self._app, self._metrics, self._routes = app, metrics, routes
        self._format = log_format  # off, text or json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status, is_complete, method = time.perf_counter(), DISCONNECTED, False, scope["method"]
        given = Headers(scope=scope).get(ID_HEADER, "")
        record = RequestRecord(given if VALID_ID.fullmatch(given) else uuid.uuid4().hex)
        state = {**scope.get("state", {}), "record": record}
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "state": state}

        async def send_counted(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = record.id
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._app(scope, receive, send_counted)
        except Exception as error:
            response = error_response(HTTPConnection(scope), error)
            if status == DISCONNECTED:
                await response(scope, receive, send_counted)
            raise
        finally:
            if status == DISCONNECTED or not is_complete:
                record.error = record.error or "client_disconnected"
            seconds = time.perf_counter() - started
            label = method if method in METHODS else OTHER
            self._metrics.count(label, self._route(scope), status, record.error, seconds)
            if self._format != "off":
                log.info(self._line(record, scope, method, status, seconds))

    def _route(self, scope: Scope) -> str:
        """Return the path template of a request, also of one that was rejected before it was routed."""
        matches = (route.path for route in self._routes if route.matches(scope)[0] != Match.NONE)  # type: ignore[attr-defined]
        return next(matches, OTHER)

    def _line(self, record: RequestRecord, scope: Scope, method: str, status: int, seconds: float) -> str:
        """Return the log line as JSON, or as `name=value` pairs; both are ASCII without control characters."""
        fields: dict[str, Any] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "client": scope["client"][0] if scope.get("client") else None,
            "method": method,
            "path": scope["path"][:MAX_PATH_LENGTH],
            "status": status,
            "seconds": round(seconds, 6),
            **asdict(record),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if self._format == "json":
            return json.dumps(fields)
        fields.pop("metadata", None)
        return " ".join(
            f"{name}={quote(str(value), safe='/:.,+[]', errors='replace')}" for name, value in fields.items()
        )
