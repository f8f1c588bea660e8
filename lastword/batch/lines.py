"""Input and output lines of the plain batch format, and types shared with OpenAI's format."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from lastword.argument_names import FOREIGN
from lastword.engines.base import TOO_LONG, GenerationReply, GenerationRequest
from lastword.errors import CapacityError, EngineError, LastwordError, PromptError
from lastword.io.prompts import LineId, PromptLine, parse_prompt_line
from lastword.io.schema import STRICT, Count, LongText, Seed, Share, SlotCount, Text, validate
from lastword.recipe.recipe import Recipe
from lastword.serve.protocol import AnswerSettings

Format = Literal["lines", "openai"]
Reply = GenerationReply[tuple[int, int]]  # keyed by line index and answer number


class PlainLine(PromptLine, AnswerSettings):
    """An input line of the plain format: a prompt, and settings that replace those of the run."""

    seed: Seed | None = None


# Names that are hardly data of the user. All other unknown fields of a line are ignored.
LONG_SETTINGS = ("max_new_tokens", "temperature")
SETTINGS = PlainLine.model_fields.keys() - PromptLine.model_fields.keys()
FOREIGN_SETTINGS = {"unmask"} | {
    name for name, advice in FOREIGN.items() if "_" in name and advice.argument in SETTINGS | {"unmask"}
}


class AnswerLine(BaseModel):
    """A plain line with the answer to a prompt and its cost, or with the reason why it failed."""

    model_config = STRICT

    index: Count
    id: LineId | None = None
    text: LongText | None
    failed: Annotated[str, Field(max_length=10_000)] | None
    finish: Literal["ended", "truncated", "masks_left", "stopped"] | None = None
    stop_reason: LongText | None = None  # the stop string that ended the answer
    chat: bool | None = None  # whether the prompt used the chat template; None: it was token ids
    prompt_tokens: Count | None = None
    tokens: SlotCount | None = None  # number of tokens in `text`
    horizon: SlotCount | None = None
    expected_length: float | None = None
    tail: Share | None = None
    forward_passes: Count | None = None  # including the probe
    tokens_computed: Count | None = None
    seconds: float | None = None
    seed: Seed | None = None
    shortened: bool = False  # the canvas was cut to the context length
    run: Text


@dataclass(frozen=True)
class BatchLine:
    """An input line with its requests, one per answer, and the resolved recipe of each request."""

    index: int
    name: str | int | None
    requests: tuple[GenerationRequest, ...]
    recipes: tuple[Recipe, ...]
    answers_per_prompt: int = 1
    is_chat: bool | None = False  # None: token ids


@dataclass(frozen=True)
class RejectedLine:
    """An input line that cannot be answered; `error` is set if the server would reject its body."""

    index: int
    name: str | int | None
    reason: str
    error: LastwordError | None = None


def line_name(data: object) -> str | int | None:
    """Return the `id` or `custom_id` of a line, or None without a valid one."""
    fields = data if isinstance(data, dict) else {}
    for name in (fields.get("id"), fields.get("custom_id")):
        with suppress(ValueError):
            if name is not None:
                return validate(LineId, name)  # type: ignore[arg-type]  # a union
    return None


def parse_plain_line(data: object) -> PlainLine:
    """Parse a plain line; raise PromptError if it is invalid, or has a misspelt or foreign name of a setting."""
    line = parse_prompt_line(data, PlainLine)
    fields = data if isinstance(data, dict) else {}
    for name in sorted(fields.keys() - PlainLine.model_fields.keys()):
        if name == "n" and fields[name] is not None:
            raise PromptError("n cannot be set, because a line has one answer: repeat the line with other seeds")
        if (near := difflib.get_close_matches(name, LONG_SETTINGS, n=1, cutoff=0.85)) or (
            name in FOREIGN_SETTINGS and isinstance(fields[name], (int, float, str))
        ):
            advice = f"did you mean {near[0]}?" if near else "use max_new_tokens, length, temperature, stop or recipe"
            raise PromptError(f"{name} is not a setting of a line; {advice}")
    return line


def split_remote_prompt(prompt: Any) -> tuple[list[int], str | tuple[dict[str, str], ...] | None]:
    """Return the token ids of a prompt, or no ids and its text or messages for a server to tokenize."""
    if isinstance(prompt, str):
        return [], prompt
    if isinstance(prompt[0], int):
        return prompt, None
    messages = tuple({"role": message["role"], "content": message["content"]} for message in prompt)
    if messages[-1]["role"] == "assistant":
        raise PromptError("the last message is an answer; end with a message of the user")
    return [], messages


def reply_error(reply: Reply) -> LastwordError | None:
    """Return the error of a reply without an answer, or None if it has an answer."""
    if reply.error is not None:
        return EngineError(reply.error)
    if reply.details.get("finish") == TOO_LONG:
        return CapacityError(
            f"the prompt has {reply.details['prompt_tokens']} tokens, which leaves too little of the model's "
            "context length for an answer; give a shorter prompt, or a model with a longer context"
        )
    return None


def total_cost(reply: Reply) -> tuple[int | None, int | None]:
    """Return the forward passes and computed tokens, including the probe; both are None if not reported."""
    costs = [cost for cost in (reply.details["probe_cost"], reply.details["cost"]) if cost is not None]
    return (sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)) if costs else (None, None)


def rename_old_fields(data: Any) -> Any:
    """Return a line with its fields from before 0.2 renamed to current names."""
    names = {"passes": "forward_passes", "columns": "tokens_computed"}
    return {names.get(name, name): data[name] for name in data} if isinstance(data, dict) else data


def valid_unicode(text: str) -> str:
    """Return text with lone surrogates, which some tokenizers decode, replaced by `?`."""
    return text.encode(errors="replace").decode()


class PlainOutput:
    """A writer and reader of the answer lines of a run in the plain format; without `times`, equal runs are equal."""

    columns: dict[str, str] = dict.fromkeys(AnswerLine.model_fields, "int64") | {
        **dict.fromkeys(("id", "text", "failed", "finish", "stop_reason", "run"), "string"),
        **dict.fromkeys(("expected_length", "tail", "seconds"), "float64"),
        **dict.fromkeys(("chat", "shortened"), "bool_"),
    }  # names of pyarrow types

    def __init__(self, run: str, *, times: bool = False) -> None:
        self.run, self._times = run, times
        self.prefix = b'{"index":'

    def answered(self, line: BatchLine, replies: Sequence[Reply]) -> bytes:
        """Return the encoded output line of an answered prompt."""
        (reply,), (request,) = replies, line.requests
        names = ("finish", "stop_reason", "prompt_tokens", "horizon", "expected_length", "tail", "seconds", "shortened")
        details = {name: reply.details[name] for name in names if name in reply.details}
        details["forward_passes"], details["tokens_computed"] = total_cost(reply)
        if not self._times:
            details["seconds"] = None
        if details.get("expected_length") is not None:  # the last digits depend on the other rows of the probe
            details["expected_length"] = round(details["expected_length"], 2)
            details["tail"] = None if details.get("tail") is None else round(details["tail"], 4)
        text, tokens = valid_unicode(reply.text), reply.details["length"]
        return self._dump(line, text=text, tokens=tokens, seed=request.seed, chat=line.is_chat, **details)

    def failed(self, line: BatchLine, error: LastwordError) -> bytes:
        """Return the encoded output line of a prompt whose answer failed."""
        (request,) = line.requests
        return self._dump(line, failed=str(error), seed=request.seed, prompt_tokens=len(request.prompt_ids))

    def rejected(self, line: RejectedLine) -> bytes:
        """Return the encoded output line for an input line that was rejected."""
        return self._dump(line, failed=line.reason)

    def read(self, data: Any) -> tuple[str, int, bool]:
        """Return the run id and index of an output line and whether it failed; raise ValueError if invalid."""
        line = validate(AnswerLine, rename_old_fields(data))
        return line.run, line.index, line.failed is not None

    def _dump(self, line: BatchLine | RejectedLine, **fields: Any) -> bytes:
        required = {"text": None, "failed": None, "index": line.index, "id": line.name, "run": self.run}
        return AnswerLine(**required | fields).model_dump_json().encode()
