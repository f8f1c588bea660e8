"""Asked: from a line to the jobs that answer it, or to why none can."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lastword.batch.line import Form, Line, line_of, name_of, request_of
from lastword.batch.source import Given
from lastword.batch.unread import Said, said_of, unread_jobs
from lastword.canvas.canvas import validate_prompts
from lastword.decoding.sampling import check_seed
from lastword.engines.base import ModelInfo, RemoteModelInfo
from lastword.engines.local import error_text
from lastword.errors import LastwordError
from lastword.prompts import tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.serve.conversion import to_server_requests
from lastword.serve.protocol import ChatRequest, InvalidRequestError, NotFoundError
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings

LIMITS = ServerSettings()  # answers of one request
MOST_REASON = 2_000  # letters


@dataclass(frozen=True)
class Asked:
    """A line and the jobs that answer it; those of a line of ours are one."""

    index: int
    name: str | int | None
    jobs: tuple[ServerRequest, ...]
    chat: bool  # a request for chat completions?
    said: tuple[Said, ...] = ()  # what each job's prompt says, where it is tokenised elsewhere


@dataclass(frozen=True)
class Refused:
    """A line that is not asked. `error` is of a request that was read and cannot be answered."""

    index: int
    name: str | int | None
    reason: str
    error: InvalidRequestError | None = None


@dataclass(frozen=True)
class Asking:
    """How lines are asked: of which model, with which recipe and seed."""

    model: ModelInfo | RemoteModelInfo
    name: str
    recipe: Recipe  # as it was given, for requests that name none
    resolved: Recipe  # for lines of ours
    form: Form
    seed: int = 0
    chat: bool = False
    single: bool = False  # is there room for one answer a line only?

    def __call__(self, given: Given) -> Asked | Refused:
        """What a line asks, whatever stands there."""
        name = name_of(given.data)
        reason: str | None = given.wrong
        error: InvalidRequestError | None = None
        try:
            if reason is None:
                return self._asked(given, name)
        except InvalidRequestError as invalid:
            reason, error = str(invalid), invalid
        except LastwordError as refused:
            reason = str(refused)
        except Exception as foreign:  # a tokenizer or a chat template may raise anything
            reason = f"the prompt could not be tokenised ({error_text(foreign)})"
        return Refused(given.index, name, f"{given.where}: {reason}"[:MOST_REASON], error)

    def _asked(self, given: Given, name: str | int | None) -> Asked:
        seed = self.seed + given.index
        if self.form == "lines":
            job, own_said = self._job(line_of(given.data), given.data, seed)
            return Asked(given.index, name, (job,), job.in_chat is True, (own_said,))
        request = request_of(given.data)
        if request.model != self.name:
            raise NotFoundError(
                f"there is no model {request.model!r:.80} here; this batch runs {self.name!r} (--name "
                "says what requests call it)",
                "model",
                "model_not_found",
            )
        own: dict[str, Any] = {} if request.seed is not None else {"seed": seed}
        if request.recipe is None:
            own["recipe"] = json.loads(self.recipe.to_json())
        request = request.model_copy(update=own)
        said: tuple[Said, ...] = ()
        if isinstance(self.model, RemoteModelInfo):
            found, said = unread_jobs(request, self.model, LIMITS)
        else:
            found = tuple(to_server_requests(request, self.model, LIMITS))
        if self.single and len(found) > 1:
            raise InvalidRequestError(
                f"{len(found)} answers were asked for, and a plain line holds one: ask for them in lines of "
                "their own, or let answers be written as OpenAI has them",
                "n",
            )
        return Asked(given.index, name, found, isinstance(request, ChatRequest), said)

    def _job(self, line: Line, data: Any, seed: int) -> tuple[ServerRequest, Said]:
        in_chat: bool | None = None
        prompt: Any = line.tokens
        if line.messages is not None:
            # Templates may know more fields than we do, so they get the user's own.
            prompt, in_chat = data["messages"], True
        elif line.prompt is not None:
            in_chat = self.chat
            prompt = [{"role": "user", "content": line.prompt}] if in_chat else line.prompt
        said: Said = None
        if isinstance(self.model, RemoteModelInfo):
            ids, said = said_of(prompt)
        else:
            (tokens,) = tokenize_prompts(self.model, prompt)
            validate_prompts([tokens], self.model.ids)
            ids = tuple(tokens)
        job = ServerRequest(
            prompt=ids,
            recipe=self.resolved,
            seed=line.seed if line.seed is not None else check_seed("batch", seed),
            most=line.max_tokens,
            in_chat=in_chat,
        )
        return job, said
