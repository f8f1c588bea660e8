"""Why a server does not answer, each with its HTTP status."""

from __future__ import annotations

from lastword.errors import (
    CapacityError,
    LastwordError,
    PromptError,
    RecipeError,
    SettingError,
)

# What the one who asked can put right, whenever it is found: some parts say no only once they are at work.
ABOUT_THE_REQUEST = (CapacityError, PromptError, RecipeError, SettingError)


class Refusal(LastwordError):
    """An answer that is not given, and why; `code` is what a program tells them apart by."""

    status = 500
    kind = "server_error"
    code = "server_error"
    retry_after: int | None = None  # seconds
    again: bool | None = None  # would asking again help? None: whoever asked may judge by the status


class Overloaded(Refusal):
    """Too much work waits already."""

    status, kind, code = 429, "rate_limit_error", "overloaded"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLate(Refusal):
    """The fewest passes that the answer can take would miss its deadline."""

    status, code, again = 503, "deadline_unreachable", False


class Draining(Refusal):
    """The server is stopping."""

    status, code = 503, "draining"


class Starting(Refusal):
    """No replica is ready yet."""

    status, code, retry_after = 503, "starting", 5


class Lost(Refusal):
    """The replica that made the answer is gone; another one gives the same."""

    status, code, retry_after, again = 503, "replica_lost", 1, True


class Expired(Refusal):
    """The deadline passed before the answer was complete."""

    status, kind, code = 504, "timeout_error", "deadline_exceeded"
    again = False


class Faulty(Refusal):
    """Decoding this answer failed; others were not touched."""

    code, again = "decoding_failed", False
