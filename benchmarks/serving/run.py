"""Run: one arm, its load, its figures, and a sample of its answers decoded alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from benchmarks.serving.clients import ClientReply, arriving, ask_engine, closed_loop, warm
from benchmarks.serving.figures import Line, line_of
from benchmarks.serving.load import Arm, LoadRequest
from benchmarks.serving.served import Served, ask_server, counted, resident
from lastword.api import build_generation
from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.models.base import MaskPredictor
from lastword.serve.engine import ServerEngine
from lastword.serve.metrics import EngineMetrics
from lastword.serve.request import ServerRequest
from lastword.serve.settings import ServerSettings

FIFTH = 5  # memory is compared between a fifth of the answers and the last


class Work(EngineMetrics):
    """The work of an engine in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.done = dict.fromkeys(("passes", "rows", "columns", "computed"), 0.0)

    @override
    def count_passes(self, passes: int, row_passes: int, tokens: int, padded_tokens: int, seconds: float) -> None:
        counts = {"passes": passes, "rows": row_passes, "columns": tokens, "computed": padded_tokens}
        for name, count in counts.items():
            self.done[name] += count


@dataclass(frozen=True)
class How:
    """The arrival of requests."""

    clients: int = 64
    rate: float | None = None  # requests a second, whoever has been answered; None: a closed loop

    def __call__(
        self,
        ask: Callable[[LoadRequest], Awaitable[ClientReply]],
        asked: Sequence[LoadRequest],
        noted: Callable[[int], None],
    ) -> Awaitable[list[ClientReply]]:
        if self.rate is None:
            return closed_loop(ask, asked, self.clients, noted)
        return arriving(ask, asked, self.rate, noted)


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
    asked: Sequence[LoadRequest],
    limits: ServerSettings,
    how: How,
    check: int,
) -> Line:
    """An arm on an engine of this process."""
    work = Work()
    engine = ServerEngine(model, limits, arm.schedule, work)
    engine.start()
    await engine.submit(warm(model.default_max_new_tokens, asked)).answers()
    work.done.update(dict.fromkeys(work.done, 0.0))
    memory, began = Memory(os.getpid(), len(asked)), time.monotonic()
    heard = await how(partial(ask_engine, engine), asked, memory)
    seconds, counts = time.monotonic() - began, dict(work.done)
    await engine.stop()
    return line_of(
        name, complete(heard, asked), seconds, counts, equal(model, heard, check), (memory.early, memory.late)
    )


async def over_http(
    name: str, server: Served, model: MaskPredictor, asked: Sequence[LoadRequest], how: How, check: int
) -> Line:
    """An arm on a server that is there."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.05)
        seen: dict[str, LoadRequest] = {request.recipe: request for request in asked}
        await asyncio.gather(*(ask_server(client, server.model, request) for request in seen.values()))  # warm
        before = counted((await client.get("/metrics")).text)
        memory, began = Memory(server.process, len(asked)), time.monotonic()
        heard = await how(partial(ask_server, client, server.model), asked, memory)
        seconds = time.monotonic() - began
        after = counted((await client.get("/metrics")).text)
    names = {
        "passes": "forward_passes_total",
        "rows": "diffusion_num_denoising_steps_total",
        "columns": "diffusion_num_canvas_positions_total",
        "computed": "tokens_computed_total",
    }
    work = {request: after[theirs] - before[theirs] for request, theirs in names.items()}
    return line_of(name, complete(heard, asked), seconds, work, equal(model, heard, check), (memory.early, memory.late))


def complete(heard: Sequence[ClientReply], asked: Sequence[LoadRequest]) -> Sequence[ClientReply]:
    """Return the answers after checking that every request has exactly one."""
    numbers = sorted(reply.asked.number for reply in heard)
    assert numbers == [reply.number for reply in asked], "an answer was lost, or given twice"
    return heard


def equal(model: MaskPredictor, heard: Sequence[ClientReply], check: int) -> tuple[int, int]:
    """Decode some of the answers alone, evenly chosen; return their number and the number of equal ones."""
    ordered = sorted(heard, key=lambda own: own.asked.number)
    chosen = [ordered[at * len(ordered) // check] for at in range(min(check, len(ordered)))]
    known: dict[ServerRequest, str | None] = {}
    for own in chosen:
        if own.asked.job not in known:
            known[own.asked.job] = alone(model, own.asked.job)
    return len(chosen), sum(known[own.asked.job] == own.text for own in chosen)


def alone(model: MaskPredictor, job: ServerRequest) -> str | None:
    """The text of a request that has the model to itself."""
    generators = RowGenerators([job.seed], model.device)
    steps = decode(model, [list(job.prompt_ids)], job.recipe, generators=generators)
    ((done, recipe),) = [(done, step.recipe) for step in steps for done in step.finished]
    return build_generation(model, done, recipe, list(job.prompt_ids), 0.0).text
