"""Unread: prompts that a server will tokenise, so that here they stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lastword.decoding.sampling import check_seed
from lastword.engines.base import ModelInfo, RemoteModelInfo
from lastword.errors import PromptError
from lastword.recipe.resolve import resolve
from lastword.serve.conversion import choose_recipe
from lastword.serve.protocol import ChatRequest, CompletionRequest, InvalidRequestError, errors_of_field
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings

Said = str | tuple[dict[str, str], ...] | None


def said_of(prompt: Any) -> tuple[tuple[int, ...], Said]:
    """The ids of a prompt that has some, and what it says where it has none."""
    if isinstance(prompt, str):
        return (), prompt
    if isinstance(prompt[0], int):
        return tuple(prompt), None
    messages = tuple({"role": one["role"], "content": one["content"]} for one in prompt)
    if messages[-1]["role"] == "assistant":
        raise PromptError("the last message is an answer already; end with a user's")
    return (), messages


def unread_jobs(
    request: ChatRequest | CompletionRequest, model: ModelInfo | RemoteModelInfo, limits: ServerSettings
) -> tuple[tuple[ServerRequest, ...], tuple[Said, ...]]:
    """What `to_server_requests` makes of a request, and what each says; the server checks lengths."""
    each, recipe = request.n or 1, choose_recipe(request, limits)
    with errors_of_field("recipe"):
        resolved = resolve(recipe, model)
    prompts = list(_prompts(request))
    if len(prompts) * each > limits.answers:
        raise InvalidRequestError(
            f"{len(prompts) * each} answers were asked for; at most {limits.answers} are given to one",
            "n",
        )
    stop = request.stop or ()
    found = [
        ServerRequest(
            prompt=ids,
            recipe=resolved,
            seed=check_seed("request", (request.seed or 0) + at * each + choice),
            most=request.cap,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            in_chat=isinstance(request, ChatRequest),
        )
        for at, (ids, _) in enumerate(prompts)
        for choice in range(each)
    ]
    return tuple(found), tuple(said for _, said in prompts for _ in range(each))


def _prompts(request: ChatRequest | CompletionRequest) -> Iterator[tuple[tuple[int, ...], Said]]:
    if isinstance(request, ChatRequest):
        yield said_of([{"role": m.role, "content": m.text} for m in request.messages])
        return
    given: Any = request.prompt
    several = isinstance(given, list) and isinstance(given[0], (str, list))
    for prompt in given if several else [given]:
        yield said_of(prompt)
