"""Checks of arguments and settings: types, ranges and choices."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import re
from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeGuard, TypeVar
from urllib.parse import urlsplit

from lastword.errors import SettingError, WrongTypeError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MAX_SLOTS = 2**20  # upper bound of canvas, block, batch or window; no model has as many positions
MAX_COUNT = 10**15  # upper bound of tokens, pairs or bytes
MAX_NUMBER = 1e9  # upper bound of a weight, temperature or factor
MIN_TEMPERATURE = 1e-6  # a logit divided by a smaller number may overflow float32
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
HOST_AND_PORT = r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d+)?"  # of a URL, without credentials
MAX_REPR_LENGTH = 60  # characters of a value in a message


def short_repr(value: object) -> str:
    """Return the repr of a value for a message: on one line, cut to MAX_REPR_LENGTH characters."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # `repr` of a user's class, or of a number with more digits than Python prints
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= MAX_REPR_LENGTH else f"{text[: MAX_REPR_LENGTH - 3]}..."


def check_type(owner: str, name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise WrongTypeError unless a value is of a class; `expected` describes it in the message."""
    if not isinstance(value, kind):
        raise _wrong_type(owner, name, value, expected)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a sequence other than text and bytes; iterators are not sequences."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array of any library."""
    return hasattr(value, "dtype") and hasattr(value, "tolist")


def as_int(value: object) -> int:
    """Return an integer of any library as a plain int; raise TypeError for booleans and arrays."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError("a boolean is not a whole number")
    if getattr(value, "ndim", 0):
        raise TypeError("an array is not a whole number, even if it contains only one")
    return operator.index(value)  # type: ignore[arg-type]


def check_list(owner: str, name: str, value: Any, expected: str) -> None:
    """Raise WrongTypeError unless `is_list` accepts a value; `expected` describes it in the message."""
    if not is_list(value):
        raise _wrong_type(owner, name, value, expected)


def _wrong_type(owner: str, name: str, value: object, expected: str) -> WrongTypeError:
    return WrongTypeError(
        f"{owner}({name}={short_repr(value)}) was given, of type {type(value).__name__}; {name} must be {expected}"
    )


def check_callable(owner: str, name: str, value: Any, takes: tuple[str, ...]) -> None:
    """Raise WrongTypeError unless a value is a function that can be called with the arguments `takes`."""
    called = f"{name}({', '.join(takes)})"
    given = f"{owner}({name}={short_repr(value)}) was given"
    if not callable(value) or isinstance(value, Part):
        raise WrongTypeError(f"{given}; {name} must be a function, called as {called}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a function written in C has no signature; it raises when it is called
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise WrongTypeError(f"{given}; it is called as {called} ({error})") from error


def check_int(owner: str, name: str, value: Any, *, minimum: int, maximum: int = MAX_SLOTS) -> None:
    """Raise an error unless a value is an int from `minimum` to `maximum`; True and 2.0 are rejected."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and minimum <= value <= maximum:
        return
    bound = f"at most {maximum}" if is_whole and value > maximum else f"{minimum} or more"
    kind = SettingError if is_whole else WrongTypeError
    raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be a whole number, {bound}")


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: int | float | None = None,
    minimum: int | float | None = None,
    below: int | float | None = None,
    maximum: int | float | None = None,
) -> None:
    """Raise an error unless a value is a finite number within the bounds; `above` and `below` are exclusive."""
    maximum = MAX_NUMBER if maximum is None and below is None else maximum
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = (
        is_number
        and value == value  # False for NaN
        and abs(value) != math.inf
        and (above is None or value > above)
        and (minimum is None or value >= minimum)
        and (below is None or value < below)
        and (maximum is None or value <= maximum)
    )
    if not fits:
        bounds = {"above": above, "at least": minimum, "below": below, "at most": maximum}
        allowed = " and ".join(f"{words} {b:g}" for words, b in bounds.items() if b is not None)
        kind = SettingError if is_number else WrongTypeError
        raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be a number {allowed}")


def check_temperature(owner: str, name: str, value: Any) -> None:
    """Raise an error unless a value is 0, or large enough that logits divided by it do not overflow float32."""
    check_number(owner, name, value, minimum=0)
    if 0 < value < MIN_TEMPERATURE:
        raise SettingError(
            f"{owner}({name}={short_repr(value)}) was given; {name} must be 0 or at least {MIN_TEMPERATURE:g}"
        )


def check_url(owner: str, url: Any) -> None:
    """Raise an error unless a value is the URL of an HTTP server, without credentials, query or fragment."""
    check_type(owner, "url", url, str, "text")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and url.isascii() and url.isprintable() and parts.port != 0
        is_url = is_url and re.fullmatch(HOST_AND_PORT, parts.netloc) is not None and not re.search(r"[ ?#\\]", url)
    except ValueError:  # of brackets without an address, or a port that is no number
        is_url = False
    if not is_url:
        shown = short_repr(url if "@" not in url else f"...@{url.rpartition('@')[2]}")  # without a password
        raise SettingError(
            f"{owner} {shown} was given; give http:// or https://, a host, and a port and path if the server has them, "
            "such as http://127.0.0.1:8000/v1, and the API key in the environment variable LASTWORD_API_KEY"
        )


def check_choice(owner: str, name: str, value: Any, *choices: str | bool | None) -> None:
    """Raise an error unless a value is one of `choices`; 1 and 0 do not count as True and False."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        allowed = " or ".join(repr(choice) for choice in choices)
        kind = SettingError if isinstance(value, (str, bool)) else WrongTypeError
        raise kind(f"{owner}({name}={short_repr(value)}) was given; {name} must be {allowed}")


def checks_arguments(
    options: type | None = None,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that explains an unknown keyword argument, where Python would raise a bare TypeError.

    `options` is the TypedDict of the function's keyword arguments, if it has one.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        owner = function.__qualname__.removesuffix(".__init__")
        parameters = inspect.signature(function).parameters.values()
        known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        known = [name for name in known if name != "self"] + [*(options.__annotations__ if options else ())]

        @functools.wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for name in kwargs:
                if name not in known:
                    from lastword.argument_names import unknown_argument

                    raise unknown_argument(owner, name, known)
            return function(*args, **kwargs)

        return checked

    return decorate


class Part(ABC):
    """A part of a recipe: a frozen dataclass whose fields are checked when it is created.

    Fields made with `checked_field` declare their own check.
    """

    name: ClassVar[str]  # in recipes and on the command line
    cost_summary: ClassVar[str] = ""
    source: ClassVar[str] = "ours"

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(settings: Any) -> None:
    """Raise an error for the first dataclass field with a value that fails its check."""
    for field in dataclasses.fields(settings):
        check: Callable[[str, str, Any], None] | None = field.metadata.get("check")
        value = getattr(settings, field.name)
        if check is not None and not (value is None and field.default is None):
            check(type(settings).__name__, field.name, value)


def checked_field(default: Any, check: Callable[..., None], *arguments: Any, **options: Any) -> Any:
    """Return a dataclass field whose value `check_fields` passes to `check`.

    The check is called as `check(class_name, field_name, value, *arguments, **options)`. None is accepted if
    it is the default.
    """

    return dataclasses.field(default=default, metadata={"check": lambda *given: check(*given, *arguments, **options)})
