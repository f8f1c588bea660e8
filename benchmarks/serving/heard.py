"""Heard: what a client noted of one request, and who asks them all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import Asked
from lastword.serve.engine import Engine
from lastword.serve.request import RequestFinished, ServerRequest


@dataclass(frozen=True)
class Heard:
    """An answer as its client saw it."""

    asked: Asked
    text: str  # all that was streamed
    tokens: int
    predicted: float | None  # mean length by the probe
    horizon: int
    passes: int
    columns: int
    seconds: float  # from asking to the end
    first: float | None  # to the first committed text
    decoding: float  # with a slot


Ask = Callable[[Asked], Awaitable[Heard]]


async def ask_engine(engine: Engine, asked: Asked) -> Heard:
    """Ask an engine of this process."""
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
    return Heard(
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
    ask: Ask, asked: Sequence[Asked], clients: int, noted: Callable[[int], None] = lambda n: None
) -> list[Heard]:
    """Send requests from `clients` clients, each after its last answer; `noted` receives the number of answers."""
    waiting, heard = list(reversed(asked)), list[Heard]()

    async def client() -> None:
        while waiting:
            heard.append(await ask(waiting.pop()))
            noted(len(heard))

    await asyncio.gather(*(client() for _ in range(clients)))
    return heard


async def arriving(
    ask: Ask, asked: Sequence[Asked], rate: float, noted: Callable[[int], None] = lambda n: None, seed: int = 0
) -> list[Heard]:
    """Send requests at a mean rate, independent of the answers (Poisson)."""
    draw, heard = random.Random(seed), list[Heard]()

    async def one(own: Asked, at: float) -> None:
        await asyncio.sleep(at)
        heard.append(await ask(own))
        noted(len(heard))

    at, coming = 0.0, list[Awaitable[None]]()
    for own in asked:
        at += draw.expovariate(rate)
        coming.append(one(own, at))
    await asyncio.gather(*coming)
    return heard


def warm(model_slots: int, asked: Sequence[Asked]) -> list[ServerRequest]:
    """A short job of every recipe, to be done before the clock runs."""
    seen: dict[str, ServerRequest] = {}
    for own in asked:
        seen.setdefault(own.recipe, own.job)
    return [ServerRequest(own.prompt_ids, own.recipe, max_new_tokens=min(8, model_slots)) for own in seen.values()]
