"""Measure one arm: send its load, and decode a sample of its answers alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from benchmarks.serving.clients import ClientReply, Send, closed_loop, poisson, send_to_engine, warm_up_jobs
from benchmarks.serving.figures import Line, line_of
from benchmarks.serving.load import Arm, LoadRequest
from benchmarks.serving.served import Served, counted, resident, send_to_server
from lastword.api import build_generation
from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.models.base import MaskPredictor
from lastword.serve.engine import ServerEngine
from lastword.serve.metrics import EngineMetrics
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings

FIFTH = 5  # memory is measured after a fifth of the answers and after the last


class WorkMetrics(EngineMetrics):
    """Counters of the work of an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys(("forward_passes", "row_passes", "tokens", "tokens_with_padding"), 0.0)

    @override
    def count_passes(self, passes: int, row_passes: int, tokens: int, padded_tokens: int, seconds: float) -> None:
        for name, count in zip(self.counts, (passes, row_passes, tokens, padded_tokens)):
            self.counts[name] += count


@dataclass(frozen=True)
class Arrivals:
    """The arrival of requests: a closed loop of clients, or a Poisson process."""

    clients: int = 64
    rate: float | None = None  # requests per second; None: a closed loop

    def __call__(
        self, send: Send, requests: Sequence[LoadRequest], on_answer: Callable[[int], None]
    ) -> Awaitable[list[ClientReply]]:
        if self.rate is None:
            return closed_loop(send, requests, self.clients, on_answer)
        return poisson(send, requests, self.rate, on_answer)


class Memory:
    """The memory of a process after a fifth of the answers and after the last."""

    def __init__(self, process: int, answers: int) -> None:
        self._process, self._at = process, max(1, answers // FIFTH)
        self.early = self.late = 0

    def __call__(self, answers: int) -> None:
        if answers == self._at:
            self.early = resident(self._process)
        if answers >= self._at:
            self.late = resident(self._process)


async def in_process(
    name: str,
    arm: Arm,
    model: MaskPredictor,
    requests: Sequence[LoadRequest],
    limits: ServerSettings,
    arrivals: Arrivals,
    check: int,
) -> Line:
    """Measure an arm with an engine in this process."""
    metrics = WorkMetrics()
    engine = ServerEngine(model, limits, arm.scheduler, metrics)
    engine.start()
    await engine.submit(warm_up_jobs(model.default_max_new_tokens, requests)).answers()
    metrics.counts.update(dict.fromkeys(metrics.counts, 0.0))
    memory, start = Memory(os.getpid(), len(requests)), time.monotonic()
    replies = await arrivals(partial(send_to_engine, engine), requests, memory)
    seconds, counts = time.monotonic() - start, dict(metrics.counts)
    await engine.stop()
    checked = equal_alone(model, replies, check)
    return line_of(name, complete(replies, requests), seconds, counts, checked, (memory.early, memory.late))


async def over_http(
    name: str, server: Served, model: MaskPredictor, requests: Sequence[LoadRequest], arrivals: Arrivals, check: int
) -> Line:
    """Measure an arm with a running server."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.05)
        by_recipe: dict[str, LoadRequest] = {request.recipe: request for request in requests}
        warm_up = (send_to_server(client, server.model, request) for request in by_recipe.values())
        await asyncio.gather(*warm_up)
        before = counted((await client.get("/metrics")).text)
        memory, start = Memory(server.process, len(requests)), time.monotonic()
        replies = await arrivals(partial(send_to_server, client, server.model), requests, memory)
        seconds = time.monotonic() - start
        after = counted((await client.get("/metrics")).text)
    names = {
        "forward_passes": "forward_passes_total",
        "row_passes": "diffusion_num_denoising_steps_total",
        "tokens": "diffusion_num_canvas_positions_total",
        "tokens_with_padding": "tokens_computed_total",
    }
    counts = {name: after[counter] - before[counter] for name, counter in names.items()}
    checked = equal_alone(model, replies, check)
    return line_of(name, complete(replies, requests), seconds, counts, checked, (memory.early, memory.late))


def complete(replies: Sequence[ClientReply], requests: Sequence[LoadRequest]) -> Sequence[ClientReply]:
    """Return the answers after checking that every request has exactly one."""
    numbers = sorted(reply.request.number for reply in replies)
    assert numbers == [request.number for request in requests], "an answer is missing, or there are two"
    return replies


def equal_alone(model: MaskPredictor, replies: Sequence[ClientReply], check: int) -> tuple[int, int]:
    """Decode `check` evenly chosen requests alone; return their number and the number of equal answers."""
    answered = [reply for reply in replies if not reply.expired]
    ordered = sorted(answered, key=lambda reply: reply.request.number)
    chosen = [ordered[at * len(ordered) // check] for at in range(min(check, len(ordered)))]
    texts: dict[ServerRequest, str | None] = {}
    for reply in chosen:
        if reply.request.job not in texts:
            texts[reply.request.job] = decode_alone(model, reply.request.job)
    return len(chosen), sum(texts[reply.request.job] == reply.text for reply in chosen)


def decode_alone(model: MaskPredictor, job: ServerRequest) -> str | None:
    """Return the text of a request that is decoded without other requests."""
    generators = RowGenerators([job.seed], model.device)
    steps = decode(model, [list(job.prompt_ids)], job.recipe, generators=generators)
    ((done, recipe),) = [(done, step.recipe) for step in steps for done in step.finished]
    return build_generation(model, done, recipe, list(job.prompt_ids)).text
