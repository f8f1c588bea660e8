"""Survey: a file of prompts looked over once, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.batch.line import Form, form_of, line_of, request_of
from lastword.batch.source import Source
from lastword.errors import LastwordError, PromptError
from lastword.serve.protocol import ChatRequest, InvalidRequestError


@dataclass(frozen=True)
class Survey:
    """What a file holds: whose format, how many lines, how they are asked."""

    digest: str
    form: Form
    count: int  # of lines that are not blank
    in_chat: frozenset[bool | None]  # do they go through the chat template? None: they are token ids


def survey(source: Source, *, chat: bool = False) -> Survey:
    """Look at every line; a file in which none is a prompt is refused. A file is of its first line's form.

    With `chat`, text goes through the chat template.
    """
    form: Form | None = None
    first: str | None = None
    count = 0
    ways: set[bool | None] = set()
    for given in source:
        count += 1
        wrong = given.wrong
        if wrong is None:
            form = form or form_of(given.data)
            try:
                ways.add(_way(given.data, form, chat))
            except InvalidRequestError as refused:  # a request all the same: its line says why it failed
                ways.add(None)
                wrong = str(refused)
            except LastwordError as refused:
                wrong = str(refused)
        if wrong is not None and first is None:
            first = f"{given.where}: {wrong}"
    if not count:
        raise PromptError(
            f"{source.path} holds no prompts; give a JSON object a line, such as "
            '{"prompt": "What is 6 x 7?"}'
        )
    if not ways:
        raise PromptError(
            f"{source.path} is no file of prompts: none of its {count} lines is one. {first}; give it "
            'such as {"prompt": "What is 6 x 7?"}'
        )
    return Survey(source.digest(), form or "lines", count, frozenset(ways))


def _way(data: object, form: Form, chat: bool) -> bool | None:
    if form == "openai":
        return isinstance(request_of(data), ChatRequest) or None
    line = line_of(data)
    return None if line.tokens is not None else chat or line.messages is not None
