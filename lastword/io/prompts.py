"""Read files of prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, Tag

from lastword.errors import PromptError
from lastword.io.schema import IGNORE_EXTRA, UTF8_MARK, LongText, Text, parse_json, read_bytes, validate
from lastword.validation import MAX_SLOTS, short_repr

MOST_LINES = 2**20
LINE_END = re.compile(rb"\r\n|\r|\n")

PromptText = Annotated[LongText, Field(min_length=1)]
Id = Annotated[int, Field(ge=0, lt=2**31)]


class Message(BaseModel):
    """One message of a conversation; a template may know more fields."""

    model_config = IGNORE_EXTRA

    role: Annotated[Text, Field(min_length=1)]
    content: LongText


def _kind(value: object) -> str | None:
    """What a prompt is meant to be, so that what is wrong with it is said of that."""
    if isinstance(value, list):
        return "messages" if any(isinstance(one, (dict, Message)) for one in value) else "ids"
    return "text" if isinstance(value, str) else "message" if isinstance(value, dict) else None


class Line(BaseModel):
    """What a line of a .jsonl file says; its other fields are the user's."""

    model_config = IGNORE_EXTRA

    prompt: Annotated[
        Annotated[PromptText, Tag("text")]
        | Annotated[list[Id], Field(min_length=1, max_length=MAX_SLOTS), Tag("ids")]
        | Annotated[list[Message], Field(max_length=MAX_SLOTS), Tag("messages")]
        | Annotated[Message, Tag("message")],
        Discriminator(
            _kind,
            custom_error_type="prompt",
            custom_error_message="Input should be text, a list of token ids, or chat messages",
        ),
    ]


class Family(BaseModel):
    """The family a line names; None: it belongs to none."""

    model_config = IGNORE_EXTRA

    family: Annotated[Text, Field(min_length=1)] | None


def read_prompts(
    path: Path, family_field: str | None = None, *, chat: bool = False
) -> tuple[list[Any], list[str | None]]:
    """The prompts of a file and their families: a line each, or objects with a "prompt" in a .jsonl.

    With `chat`, a text becomes a user's message.
    """
    kind = path.suffix.lower()
    if kind == ".json":
        raise PromptError(
            f"{path.name} ends in .json; give a .jsonl file (an object a line), or text (a prompt a line)"
        )
    if kind != ".jsonl" and family_field is not None:
        raise PromptError(
            f"a family field was given for {path.name}, whose lines are prompts; families need a .jsonl "
            "file: give one, or leave the field out"
        )
    prompts: list[Any] = []
    families: list[str | None] = []
    for number, text in _lines(path):
        where = f"line {number} of {path.name}"
        prompt, family = (text, None) if kind != ".jsonl" else _line(text, where, family_field)
        if chat and isinstance(prompt, list) and not isinstance(prompt[0], dict):
            raise PromptError(
                f"{where} holds token ids, which cannot go through the chat template; give text or chat "
                "messages, or ask without it"
            )
        if chat and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        prompts.append(prompt)
        families.append(family)
    if not prompts:
        raise PromptError(f"{path.name} holds no prompts; give it one a line")
    return prompts, families


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        data = read_bytes(path)
    except (OSError, ValueError) as wrong:
        raise PromptError(
            f"the prompts in {short_repr(str(path))} cannot be read ({wrong}); give a text file with one "
            "a line, "
            "or a .jsonl file"
        ) from wrong
    lines = LINE_END.split(data.removeprefix(UTF8_MARK))
    if len(lines) > MOST_LINES:
        raise PromptError(
            f"{path.name} has {len(lines)} lines, and at most {MOST_LINES} are read; give it in parts"
        )
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError as wrong:
            raise PromptError(
                f"line {number} of {path.name} is not UTF-8 ({wrong}); save the file as UTF-8 text"
            ) from wrong
        if "\0" in text:
            raise PromptError(f"line {number} of {path.name} holds a NUL byte; is it a text file?")
        if text.strip():
            yield number, text


def _line(text: str, where: str, family_field: str | None) -> tuple[Any, str | None]:
    """The prompt and the family of an object."""
    try:
        data = parse_json(text)
    except ValueError as broken:
        raise PromptError(f"{where} is not JSON ({broken})") from broken
    if not isinstance(data, dict):
        raise PromptError(f'{where} is no object with a "prompt": {short_repr(text)}')
    for field in ("prompt", *(() if family_field is None else (family_field,))):
        if field not in data:
            known = ", ".join(map(short_repr, data)) or "none"
            raise PromptError(f"{where} has no field {field!r}; it has {known:.200}")
    try:
        validate(Line, data)
        family = None if family_field is None else data[family_field]
        named = str(family) if type(family) is int else family  # a family may be numbered
        return data["prompt"], validate(Family, {"family": named}).family
    except ValueError as wrong:
        raise PromptError(f"{where} cannot be used: {wrong}") from wrong
