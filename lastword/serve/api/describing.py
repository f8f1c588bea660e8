"""Describing: the OpenAPI document, which names every answer that the server gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lastword.serve.api import replies
from lastword.serve.api.schema import ChatRequest, CompletionRequest, LengthsRequest

if TYPE_CHECKING:
    from fastapi import FastAPI

REQUESTS: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, LengthsRequest)
REFERENCE = "#/components/schemas/{model}"
RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
WHY = {
    400: "The request cannot be answered as it stands; the message names the field.",
    401: "No key, or none of this server's.",
    404: "There is no such model.",
    405: "The path takes another method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not sent as JSON.",
    429: "Too much work waits; Retry-After says how long to.",
    500: "The server failed at this request.",
    503: "The server is stopping, or the deadline cannot be met.",
    504: "The deadline passed before the answer was complete.",
}

CHUNK = {"type": "string", "description": "A chunk as JSON, an error as JSON, or [DONE]."}
EVENT = {"type": "object", "properties": {"data": CHUNK}, "required": ["data"]}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}

PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers beside 200, all in one shape."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": replies.ErrorReply, "description": WHY[status]} for status in statuses
    }
    if 429 in found:
        found[429]["headers"] = RETRY
    return found


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """The body of a route that reads it by itself."""
    schema = {"$ref": REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def described(app: FastAPI, name: str, *, keyed: bool) -> Callable[[], dict[str, Any]]:
    """What to put in the place of `app.openapi`."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            _, requests = models_json_schema(
                [(kind, "validation") for kind in REQUESTS], ref_template=REFERENCE
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(requests["$defs"])
            for kind in REQUESTS:
                schemas[kind.__name__]["properties"]["model"]["enum"] = [name]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)  # ours are 400
            if keyed:
                _lock(document)
        return app.openapi_schema or {}

    return openapi


def _lock(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for operation in path.values():
            if "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
