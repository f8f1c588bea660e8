"""Columns: lines of answers as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lastword.batch.line import Form

# Names, and pyarrow's words for what they hold.
PLAIN = {
    "index": "int64", "id": "string", "text": "string", "failed": "string", "finish": "string",
    "prompt_tokens": "int64", "tokens": "int64", "horizon": "int64", "expected_length": "float64",
    "tail": "float64", "forward_passes": "int64", "tokens_computed": "int64",
    "seconds": "float64", "seed": "int64",
    "shortened": "bool_", "run": "string",
}  # fmt: skip
OPENAI = dict.fromkeys(("id", "custom_id", "response", "error"), "string")


def of(form: Form) -> dict[str, str]:
    """The columns of a table of such lines."""
    return PLAIN if form == "lines" else OPENAI


def rows(lines: Iterable[dict[str, Any]], form: Form) -> Iterator[dict[str, Any]]:
    """Lines as rows: an id is text, and an object is its JSON."""
    for line in lines:
        if form == "lines":
            named = line.get("id")
            yield {**line, "id": None if named is None else str(named)}
        else:
            yield {
                name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
                for name, value in line.items()
            }
