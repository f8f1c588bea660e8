"""Clients: their requests to an engine, in a closed loop or at a rate, and the measured replies."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import LoadRequest
from lastword.serve.engine import ServerEngine
from lastword.serve.request import RequestFinished, ServerRequest


@dataclass(frozen=True)
class ClientReply:
    """An answer with the times that its client measured."""

    asked: LoadRequest
    text: str  # all that was streamed
    tokens: int
    predicted: float | None  # mean length by the probe
    horizon: int
    passes: int
    columns: int
    seconds: float  # from asking to the end
    first: float | None  # to the first committed text
    decoding: float  # with a slot


Ask = Callable[[LoadRequest], Awaitable[ClientReply]]


async def ask_engine(engine: ServerEngine, asked: LoadRequest) -> ClientReply:
    """Send a request to an engine of this process and return the measured reply."""
    began, first, texts = time.monotonic(), None, list[str]()
    events = engine.submit([asked.job]).events()
    answer: RequestFinished | None = None
    async for _, event in events:
        if isinstance(event, str):
            first = first or time.monotonic() - began
            texts.append(event)
        if isinstance(event, RequestFinished):
            assert answer is None, "answered twice"
            answer = event
    assert answer is not None, "no answer came"
    assert answer.text == "".join(texts), "what was streamed is not the answer"
    made = answer.generation
    return ClientReply(
        asked,
        answer.text,
        answer.num_tokens if asked.useful is None else asked.useful,
        float(made.horizon) if made.lengths is None else made.lengths.mean.item(),
        made.horizon,
        made.cost.forward_passes,
        made.cost.tokens_computed,
        time.monotonic() - began,
        first,
        answer.seconds_decoding,
    )


async def closed_loop(
    ask: Ask, asked: Sequence[LoadRequest], clients: int, noted: Callable[[int], None] = lambda n: None
) -> list[ClientReply]:
    """Send requests from `clients` clients, each after its last answer; `noted` receives the number of answers."""
    waiting, heard = list(reversed(asked)), list[ClientReply]()

    async def client() -> None:
        while waiting:
            heard.append(await ask(waiting.pop()))
            noted(len(heard))

    await asyncio.gather(*(client() for _ in range(clients)))
    return heard


async def arriving(
    ask: Ask, asked: Sequence[LoadRequest], rate: float, noted: Callable[[int], None] = lambda n: None, seed: int = 0
) -> list[ClientReply]:
    """Send requests at a mean rate, independent of the answers (Poisson)."""
    draw, heard = random.Random(seed), list[ClientReply]()

    async def one(request: LoadRequest, at: float) -> None:
        await asyncio.sleep(at)
        heard.append(await ask(request))
        noted(len(heard))

    at, coming = 0.0, list[Awaitable[None]]()
    for request in asked:
        at += draw.expovariate(rate)
        coming.append(one(request, at))
    await asyncio.gather(*coming)
    return heard


def warm(model_slots: int, asked: Sequence[LoadRequest]) -> list[ServerRequest]:
    """Return a short job of every recipe, to be done before the clock runs."""
    seen: dict[str, ServerRequest] = {}
    for request in asked:
        seen.setdefault(request.recipe, request.job)
    return [
        ServerRequest(request.prompt_ids, request.recipe, max_new_tokens=min(8, model_slots))
        for request in seen.values()
    ]
