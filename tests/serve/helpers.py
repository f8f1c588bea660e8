"""Engines for tests, models that fail, and what each request decodes to alone."""

import asyncio
import contextlib
import threading
import time
from functools import cache

import torch

from lastword.api import build_generation
from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.models.toy import LETTERS, Toy
from lastword.recipe.resolve import resolve
from lastword.serve.engine import ServerEngine
from lastword.serve.request import RequestFinished, ServerError, ServerRequest
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings
from lastword.viz.frames import Frame

MARK = "zaz"  # the beginning of a prompt on which a model below fails; no answer has it
TIMEOUT = 60.0  # seconds

TOY = Toy()  # decodes what the models below decode unless they fail


@contextlib.asynccontextmanager
async def engine_of(model, scheduler=Scheduler(), **settings):
    """A running engine, stopped at the end."""
    engine = ServerEngine(model, ServerSettings(**settings), scheduler)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.002)


def prompt_ids_of(text):
    """Return the token ids of a prompt of the toy model."""
    return tuple(LETTERS.index(letter) for letter in text)


def request_of(text, recipe, model=None, **more):
    """Return a validated request for the toy model."""
    prompt_ids = prompt_ids_of(text)
    return ServerRequest(prompt_ids, resolve(recipe, model or TOY, [prompt_ids]), **more)


@cache
def alone(model, request):
    """Return the text of a request that is decoded in a batch of one, cut at its stop strings."""
    cap = request.max_new_tokens
    steps = decode(
        model,
        [list(request.prompt_ids)],
        request.recipe,
        generators=RowGenerators([request.seed], model.device),
        max_new_tokens=None if cap is None else [cap],
    )
    ((row, recipe),) = [(row, step.recipe) for step in steps for row in step.finished]
    return cut_at_stop(build_generation(model, row, recipe, list(request.prompt_ids)).text, request.stop)


def cut_at_stop(text, stops):
    """Return the text before the stop string that is complete first."""
    matches = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text[: sum(min(matches))] if matches else text


async def read(stream):
    """Return the streamed texts and the answer of a stream for one answer."""
    texts, answer = [], None
    async for _, event in stream.events():
        if isinstance(event, str):
            texts.append(event)
        if isinstance(event, RequestFinished):
            answer = event
    return texts, answer


async def outcome(stream):
    """Return the streamed text, or the code of the error."""
    try:
        texts, answer = await read(stream)
    except Exception as error:
        return error.code if isinstance(error, ServerError) else type(error).__name__
    assert "".join(texts) == answer.generation.text
    return answer.generation.text


async def frames_of(stream):
    return [event async for _, event in stream.events() if isinstance(event, Frame)]


async def outcomes(engine, requests):
    """Submit requests one by one and return the outcome of each."""
    streams = [engine.submit([request]) for request in requests]
    return await asyncio.gather(*(outcome(stream) for stream in streams))


class Misbehaving(Toy):
    """The toy model with a hook on every forward pass."""

    def __init__(self, pause=0.0, hazard=0.05):
        super().__init__(hazard)
        self.pause, self.calls = pause, 0
        self._lock = threading.Lock()

    def __call__(self, tokens, read, *, valid=None, stale=None, storage=None):
        with self._lock:
            self.calls += 1
        time.sleep(self.pause)
        marked = self.marked(tokens, valid)
        logits = super().__call__(tokens, read, valid=valid, stale=stale, storage=storage)
        return self.act(logits, tokens, marked)

    def act(self, logits, tokens, marked):
        return logits

    def marked(self, tokens, valid):
        """Return which rows have a prompt that begins with the mark."""
        first = torch.zeros(len(tokens), dtype=torch.long)
        if valid is not None:
            first = valid.int().argmax(-1)
        columns = (first[:, None] + torch.arange(len(MARK))).clamp(max=tokens.shape[1] - 1)
        return (tokens.gather(1, columns) == torch.tensor(prompt_ids_of(MARK))).all(-1)

    def letters(self, tokens):
        """Return the number of letters of each row, prompt included."""
        return (tokens < len(LETTERS)).sum(-1)


class Poisoned(Misbehaving):
    """Returns NaN for a marked row; with `after`, once the row has that many letters."""

    def __init__(self, after=0, **more):
        super().__init__(**more)
        self.after = after

    def act(self, logits, tokens, marked):
        bad = marked & (self.letters(tokens) >= self.after)
        return torch.where(bad[:, None, None], torch.nan, logits)


class Narrow(Misbehaving):
    """Runs out of memory with more than `rows` rows, and for a marked row."""

    def __init__(self, rows, **more):
        super().__init__(**more)
        self.rows = rows

    def act(self, logits, tokens, marked):
        if len(tokens) > self.rows or bool((marked & (self.letters(tokens) > len(MARK))).any()):
            raise torch.OutOfMemoryError("CUDA out of memory (of a test)")
        return logits


class Stumbling(Misbehaving):
    """Fails in some calls, for all rows."""

    def __init__(self, *failing, **more):
        super().__init__(**more)
        self.failing = failing

    def act(self, logits, tokens, marked):
        if self.calls in self.failing:
            raise RuntimeError("a stumble (of a test)")
        return logits
