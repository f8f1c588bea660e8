"""Unsupported: a field of the OpenAI API that does nothing here, and what clients may send all the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from lastword.validation import short_repr


@dataclass(frozen=True, eq=False)  # neutral 0 is not neutral False, and typing keeps one of equals
class Unsupported:
    """Annotates a field: null and these neutral values are taken and dropped, others refused with the reason.

    Clients send values unasked that change nothing: a penalty of 0, an empty list of tools.
    """

    why: str
    neutral: tuple[Any, ...] = ()

    def check(self, value: Any) -> None:
        """Is it a value that asks for nothing?"""
        if not any(_same(value, allowed) for allowed in (None, *self.neutral)):
            allowed = ", ".join(map(json.dumps, self.neutral))
            raise PydanticCustomError(
                "unsupported",
                "{why}; leave it out{instead} (given: {given})",
                {
                    "why": self.why,
                    "instead": f", or give {allowed}" if allowed else "",
                    "given": short_repr(value),
                },
            )

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, *self.neutral], "description": f"Not supported: {self.why}."}


def _same(value: object, allowed: object) -> bool:
    """Equal as JSON has it: 0 and 0.0 are, 0 and false are not."""
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    return value == allowed
