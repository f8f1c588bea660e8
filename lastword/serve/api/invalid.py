"""What is wrong with a request, each with its HTTP status."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ValidationError

from lastword.errors import LastwordError
from lastword.io.schema import first_error
from lastword.serve.errors import Refusal
from lastword.validation import short_repr


class Invalid(Refusal):
    """A request that cannot be answered as it stands; `param` is the field to change."""

    status, kind, code = 400, "invalid_request_error", "invalid_request"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code or type(self).code


class WrongKey(Invalid):
    """No key was given, or none of ours."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class NoSuchThing(Invalid):
    """A path or a model that this server does not have."""

    status, code = 404, "not_found"


class TooSlow(Invalid):
    """A body that did not arrive in time."""

    status, code = 408, "request_timeout"


class TooLarge(Invalid):
    """A body of more bytes than are read."""

    status, code = 413, "request_too_large"


class NotJson(Invalid):
    """A body that says it is something else."""

    status, code = 415, "unsupported_media_type"


@contextmanager
def about(param: str) -> Iterator[None]:
    """Whatever is refused inside is said of this field."""
    try:
        yield
    except Refusal:
        raise
    except LastwordError as wrong:
        raise Invalid(str(wrong), param) from wrong


def invalid(kind: type[BaseModel], wrong: ValidationError) -> Invalid:
    """The first thing that is wrong with a request, in a sentence that names the field."""
    field, first = first_error(wrong)
    if first["type"] == "extra_forbidden":
        return Invalid(f"there is no field {field}{_near(field, kind.model_fields)}", field, "unknown_field")
    if first["type"] == "missing":
        return Invalid(f"{field} is missing: {_wanted(kind, field)}", field, "missing_field")
    if first["type"] == "unsupported":
        return Invalid(f"{field} is not supported: {first['msg']}", field, "unsupported_field")
    if not field:
        return Invalid(str(first["msg"]))
    return Invalid(f"{field}: {first['msg']} (given: {short_repr(first['input'])})", field)


def _near(field: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(field, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def _wanted(kind: type[BaseModel], field: str) -> str:
    known = kind.model_fields.get(field)
    return (known and known.description) or "give it"
