"""Clients that send requests in a closed loop or at a rate, and measure the replies."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import LoadRequest
from lastword.serve.engine import ServerEngine
from lastword.serve.request import RequestFinished, ServerError, ServerRequest


@dataclass(frozen=True)
class ClientReply:
    """An answer with the times that its client measured."""

    request: LoadRequest
    text: str  # the concatenation of all streamed text
    tokens: int
    predicted: float | None  # mean length by the probe
    horizon: int
    forward_passes: int
    tokens_computed: int
    seconds: float  # from the request to the end
    first: float | None  # from the request to the first committed text
    decoding: float  # seconds in the running batch
    expired: bool = False  # not answered before the deadline


Send = Callable[[LoadRequest], Awaitable[ClientReply]]


async def send_to_engine(engine: ServerEngine, request: LoadRequest) -> ClientReply:
    """Send a request to an engine of this process and return the measured reply."""
    start, first, texts = time.monotonic(), None, list[str]()
    events = engine.submit([request.job]).events()
    answer: RequestFinished | None = None
    try:
        async for _, event in events:
            if isinstance(event, str):
                first = first or time.monotonic() - start
                texts.append(event)
            if isinstance(event, RequestFinished):
                assert answer is None, "a request has two answers"
                answer = event
    except ServerError as error:
        if error.code not in ("deadline_exceeded", "deadline_unreachable"):
            raise
        return ClientReply(request, "", 0, None, 0, 0, 0, time.monotonic() - start, first, 0.0, expired=True)
    assert answer is not None, "a request has no answer"
    generation = answer.generation
    assert generation.text == "".join(texts), "the streamed text differs from the answer"
    return ClientReply(
        request,
        generation.text,
        len(generation.tokens) if request.useful is None else request.useful,
        float(generation.horizon) if generation.lengths is None else generation.lengths.mean.item(),
        generation.horizon,
        generation.cost.forward_passes,
        generation.cost.tokens_computed,
        time.monotonic() - start,
        first,
        answer.seconds_decoding,
    )


async def closed_loop(
    send: Send, requests: Sequence[LoadRequest], clients: int, on_answer: Callable[[int], None] = lambda count: None
) -> list[ClientReply]:
    """Send requests from `clients` clients, each after its last answer; call `on_answer` with the number of answers."""
    waiting, replies = list(reversed(requests)), list[ClientReply]()

    async def client() -> None:
        while waiting:
            replies.append(await send(waiting.pop()))
            on_answer(len(replies))

    await asyncio.gather(*(client() for _ in range(clients)))
    return replies


async def poisson(
    send: Send,
    requests: Sequence[LoadRequest],
    rate: float,
    on_answer: Callable[[int], None] = lambda count: None,
    seed: int = 0,
) -> list[ClientReply]:
    """Send requests at a mean rate, independent of the answers (a Poisson process)."""
    draw, replies = random.Random(seed), list[ClientReply]()

    async def send_at(request: LoadRequest, at: float) -> None:
        await asyncio.sleep(at)
        replies.append(await send(request))
        on_answer(len(replies))

    at, arrivals = 0.0, list[Awaitable[None]]()
    for request in requests:
        at += draw.expovariate(rate)
        arrivals.append(send_at(request, at))
    await asyncio.gather(*arrivals)
    return replies


def warm_up_jobs(max_tokens: int, requests: Sequence[LoadRequest]) -> list[ServerRequest]:
    """Return a short job of every recipe, to be decoded before the measurement."""
    by_recipe: dict[str, ServerRequest] = {}
    for request in requests:
        by_recipe.setdefault(request.recipe, request.job)
    return [ServerRequest(job.prompt_ids, job.recipe, max_new_tokens=min(8, max_tokens)) for job in by_recipe.values()]
