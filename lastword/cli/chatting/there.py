"""There: a server answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lastword.cli.chatting.heard import (
    Added,
    Drawn,
    Ended,
    Heard,
    Turn,
    Wishes,
)
from lastword.cli.chatting.http import Http, Unanswered
from lastword.errors import RecipeError, SettingError
from lastword.io.files import os_error_reason, user_path
from lastword.serve.protocol import AnswerDetails, FramePayload


class There:
    """Asks a server: as a conversation, or line by line where its model has no chat template."""

    def __init__(self, http: Http, name: str | None, wishes: Wishes) -> None:
        self._http = http
        wished = {
            "recipe": _recipe(wishes.recipe),
            "length": wishes.length,
            "temperature": wishes.temperature,
            "seed": wishes.seed,
            "max_tokens": wishes.most,
        }
        self._wished = {field: value for field, value in wished.items() if value is not None}
        self.name, self.chats = _model(http, name)

    def ask(self, turns: Sequence[Turn], *, drawn: bool) -> Iterator[Heard]:
        path = "/v1/chat/completions" if self.chats else "/v1/completions"
        body: dict[str, Any] = {
            "model": self.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._wished,
        }
        body |= {"messages": list(turns)} if self.chats else {"prompt": turns[-1]["content"]}
        if drawn:
            body["diffusing"] = True
        text, told = "", None
        tokens: Any = None
        for chunk in self._http.events(path, body):
            if not isinstance(chunk, dict):
                continue
            usage = chunk.get("usage") or {}
            tokens = usage.get("completion_tokens", tokens)
            for choice in chunk.get("choices") or ():
                more = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                own = choice.get("lastword") or {}
                text = more if drawn else text + more  # a picture replaces the one before
                if drawn and "frame" in own:
                    frame = FramePayload.model_validate(own["frame"])
                    yield Drawn(frame.texts, frame.filled_at, frame.forward_passes, frame.end)
                elif more and not drawn:
                    yield Added(more)
                told = _ledger(own) or told
        yield Ended(text, tokens, told)

    def replay(self, path: Path) -> Path:
        raise SettingError(
            "a replay needs the model in this process; chat without --url, or use the server's page"
        )


def _model(http: Http, name: str | None) -> tuple[str, bool]:
    """The model of this name, or the first one, and whether it has a chat template."""
    listed = http.get("/v1/models")
    try:
        models = {str(own["id"]): own for own in listed["data"]}
        chosen = name or next(iter(models))
    except (TypeError, LookupError, StopIteration) as wrong:
        raise Unanswered(f"{http.url} lists no model; is it a server of the OpenAI API?") from wrong
    if chosen not in models:
        raise SettingError(f"there is no model {chosen!r:.80} at {http.url}; it has {', '.join(models)}")
    return chosen, bool((models[chosen].get("lastword") or {}).get("chat", True))


def _ledger(own: dict[str, Any]) -> AnswerDetails | None:
    """What the last chunk of an answer has; the first one knows the prediction alone."""
    try:
        return AnswerDetails.model_validate(own)
    except ValidationError:
        return None


def _recipe(given: str | None) -> Any:
    """A name goes to the server as it is; a file as what it holds."""
    if given is None or given.isidentifier():
        return given
    path = user_path(given)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        reason = os_error_reason(wrong)
        raise RecipeError(f"the recipe file {given!r:.200} cannot be read ({reason})") from wrong
