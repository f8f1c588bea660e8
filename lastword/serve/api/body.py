"""Body: the bytes of a request, read within limits, as the request they describe."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from lastword.io.schema import parse_object
from lastword.serve.api.invalid import Invalid, NotJson, TooLarge, TooSlow, invalid
from lastword.serve.limits import Limits
from lastword.validation import short_repr

if TYPE_CHECKING:
    from starlette.requests import Request

Kind = TypeVar("Kind", bound=BaseModel)
JSON = "application/json"


async def read(request: Request, kind: type[Kind], limits: Limits) -> Kind:
    """The body as a value of this kind; an Invalid says what is wrong with it."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise NotJson(
            f"a body of type {short_repr(media)} was sent; send JSON with the header `Content-Type: {JSON}`"
        )
    try:
        return kind.model_validate(parse_object(await content(request, limits)))
    except ValidationError as wrong:
        raise invalid(kind, wrong) from wrong
    except ValueError as broken:
        raise Invalid(f"the body is not JSON as we read it ({broken})", code="invalid_json") from broken


async def content(request: Request, limits: Limits) -> bytes:
    """The bytes of a body that is no longer, and arrives no later, than limits say."""
    try:
        return await asyncio.wait_for(_bytes(request, limits.body), limits.reading)
    except asyncio.TimeoutError:
        raise TooSlow(f"the body did not arrive within {limits.reading:g} seconds") from None


async def _bytes(request: Request, most: int) -> bytes:
    """All of it, unless it is too much; a header that says so is believed, one that does not is not."""
    length = request.headers.get("content-length", "")
    content = bytearray()
    if not (length.isdecimal() and int(length[:20]) > most):
        async for chunk in request.stream():
            content += chunk
            if len(content) > most:
                break
        else:
            return bytes(content)
    raise TooLarge(f"the body has more than {most} bytes, which is all that is read")
