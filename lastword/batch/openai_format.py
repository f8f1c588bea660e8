"""OpenAI's batch format: input lines with API requests, and output lines with API responses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from lastword.batch.lines import BatchLine, RejectedLine, Reply, split_remote_prompt, total_cost, valid_unicode
from lastword.engines.base import GenerationRequest, ModelInfo, RemoteModelInfo
from lastword.errors import CapacityError, LastwordError, PromptError
from lastword.io.schema import STRICT, Text, parse_json_object, validate
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve import protocol, serving
from lastword.serve.request import InvalidRequestError, ServerError
from lastword.serve.settings import ServerSettings
from lastword.validation import MAX_SLOTS

ServerBody = protocol.AnswerBody

SETTINGS = ServerSettings()
LINE_ID = re.compile(r"batch_req_([0-9a-f]{12})_([0-9]{1,12})")  # with the run id and the index


class RequestLine(BaseModel):
    """A line of OpenAI's batch input."""

    model_config = STRICT

    custom_id: Annotated[Text, Field(min_length=1)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any] | str  # an object, or its JSON text in a table


def parse_request_line(data: object) -> ServerBody:
    """Return the request of a line; raise PromptError, or InvalidRequestError if its body is invalid."""
    try:
        line = validate(RequestLine, data)
        body = line.body if isinstance(line.body, dict) else parse_json_object(line.body)
    except ValueError as error:
        raise PromptError(f"it is not a line of OpenAI's batch input ({error})") from error
    kind = protocol.ANSWER_BODIES[line.url]
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        raise protocol.from_validation_error(kind, error.errors(include_url=False)) from error
    given = {"stream": request.stream, "timeout": request.timeout, "logprobs": request.logprobs is not None}
    for name, is_given in given.items():
        if is_given:
            message = f"{name} is not supported in a batch, which writes complete answers; leave it out"
            raise InvalidRequestError(message, name, "unsupported_field")
    return request


def to_batch_line(
    index: int,
    custom_id: str | int | None,
    body: ServerBody,
    model: ModelInfo | RemoteModelInfo,
    name: str,
    recipe: Recipe,
    *,
    seed: int,
    max_answers: int | None = None,
) -> BatchLine:
    """Return a request as a BatchLine; its model must be `name`, and `recipe` and `seed` are defaults."""
    if body.model != name:
        raise InvalidRequestError(
            f"the model {body.model!r:.80} does not exist; this batch uses {name!r} (--name sets the name in requests)",
            "model",
            "model_not_found",
        )
    defaults: dict[str, Any] = {} if body.seed is not None else {"seed": seed}
    if body.recipe is None:
        defaults["recipe"] = json.loads(recipe.to_json())
    body = body.model_copy(update=defaults)
    cap = body.max_tokens and min(body.max_tokens, MAX_SLOTS)
    if isinstance(model, RemoteModelInfo):
        requests, recipes = _remote_requests(body, cap, model)
    else:
        answers = serving.to_server_requests(body, model, SETTINGS)
        requests = [
            GenerationRequest(list(answer.prompt_ids), answer.seed, cap, stop=answer.stop) for answer in answers
        ]
        recipes = [answer.recipe for answer in answers]
    if max_answers is not None and len(requests) > max_answers:
        raise InvalidRequestError(
            f"{len(requests)} answers were requested, and a plain line has one: request them in separate "
            "lines, or write OpenAI's format",
            "n",
        )
    is_chat = isinstance(body, protocol.ChatRequest)
    return BatchLine(index, custom_id, tuple(requests), tuple(recipes), body.n or 1, is_chat)


def _remote_requests(
    body: ServerBody, cap: int | None, model: RemoteModelInfo
) -> tuple[list[GenerationRequest], list[Recipe]]:
    """Return the requests and recipes of a line whose prompts a server will tokenize."""
    prompts: Any
    if isinstance(body, protocol.CompletionRequest):
        prompts = body.prompt
    else:
        prompts = [[{"role": turn.role, "content": turn.content} for turn in body.messages]]
    serving.check_num_answers(body, SETTINGS)
    with serving.errors_of_field("recipe"):
        recipe = resolve(serving.choose_recipe(body, SETTINGS), model)
    requests = list[GenerationRequest]()
    for prompt in prompts:
        ids, text = split_remote_prompt(prompt)
        for _ in range(body.n or 1):
            seed = (body.seed or 0) + len(requests)
            requests.append(GenerationRequest(ids, seed, cap, text, tuple(body.stop or ())))
    return requests, [recipe] * len(requests)


class OpenAIOutput:
    """A writer and reader of the answer lines of a run in OpenAI's batch output format.

    The bodies are the server's responses, without quantiles, which engines do not report. Without `times`, times are 0,
    so that equal runs give equal files.
    """

    columns: dict[str, str] = dict.fromkeys(("id", "custom_id", "response", "error"), "string")

    def __init__(self, run: str, name: str, *, times: bool = False) -> None:
        self.run, self.name, self._times = run, name, times
        self.prefix = f'{{"id":"batch_req_{run}_'.encode()

    def answered(self, line: BatchLine, replies: Sequence[Reply]) -> bytes:
        """Return the encoded output line with all answers to a request."""
        return self._line(line, 200, self._body(line, replies))

    def failed(self, line: BatchLine, error: LastwordError) -> bytes:
        """Return the encoded output line of a request with a failed answer."""
        code = "context_length_exceeded" if isinstance(error, CapacityError) else "decoding_failed"
        failure = ServerError(str(error), code)
        return self._line(line, failure.kind.status, failure.body)

    def rejected(self, line: RejectedLine) -> bytes:
        """Return the encoded output line for an input line that was rejected."""
        if line.error is None:
            return self._line(line, None, {"code": "invalid_line", "message": line.reason})
        failure = ServerError.of(line.error)
        return self._line(line, failure.kind.status, failure.body)

    def read(self, data: Any) -> tuple[str, int, bool]:
        """Return the run id and index of an output line and whether it failed; raise ValueError if invalid."""
        match = isinstance(data, dict) and LINE_ID.match(str(data.get("id")))
        if not match or set(data) != {"id", "custom_id", "response", "error"}:
            raise ValueError("it is not a line of OpenAI's batch output")
        response = data["response"]
        answered = isinstance(response, dict) and response.get("status_code") == 200
        return match[1], int(match[2]), not answered

    def _line(self, line: BatchLine | RejectedLine, status: int | None, body: Mapping[str, Any]) -> bytes:
        """Encode an output line; `body` is a response or, if `status` is None, the error of the line."""
        number = f"{self.run}_{line.index}"
        response = status and {"status_code": status, "request_id": f"req_{number}", "body": body}
        fields: dict[str, Any] = {"id": f"batch_req_{number}", "custom_id": line.name, "response": response}
        fields["error"] = None if status else body
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _body(self, line: BatchLine, replies: Sequence[Reply]) -> dict[str, Any]:
        head = serving.response_head(bool(line.is_chat), f"{self.run}_{line.index}", self.name)
        details = [_details(line, number, reply, times=self._times) for number, reply in enumerate(replies)]
        if not self._times:
            head["created"] = 0
        num_tokens = sum(reply.details["length"] or 0 for reply in replies)
        read = sum(reply.details["prompt_tokens"] for reply in replies[:: line.answers_per_prompt])
        return serving.response_body(head, [valid_unicode(reply.text) for reply in replies], details, read, num_tokens)


def _details(line: BatchLine, number: int, reply: Reply, *, times: bool) -> protocol.AnswerDetails:
    request, details = line.requests[number], reply.details
    expected = details.get("expected_length")
    forward_passes, tokens_computed = (count or 0 for count in total_cost(reply))
    return protocol.AnswerDetails.of(
        details["finish"],
        details["length"] or 0,
        request.max_new_tokens,
        predicted_length=None if expected is None else round(expected, 2),
        quantiles=None,
        horizon=details["horizon"],
        forward_passes=forward_passes,
        tokens_computed=tokens_computed,
        seconds_queued=0.0,
        seconds_decoding=details["seconds"] if times else 0.0,
        recipe=line.recipes[number].label(),
        seed=request.seed,
    )
