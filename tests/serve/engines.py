"""Engines for tests, models that misbehave, and what each job comes to alone."""

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
from lastword.serve.engine import Engine
from lastword.serve.request import RequestFinished, ServerRequest, TextDelta
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings

MARK = "zaz"  # how a prompt begins that something happens to; no answer has it
LONGEST = 60.0  # seconds: whoever waits longer waits for nothing


@contextlib.asynccontextmanager
async def engine_of(model, schedule=Scheduler(), **limits):
    """An engine at work, stopped at the end."""
    engine = Engine(model, ServerSettings(**limits), schedule)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)


def run(coroutine):
    """What a coroutine comes to, in a loop of its own, within bounds."""
    return asyncio.run(asyncio.wait_for(coroutine, LONGEST))


async def until(condition, seconds=10.0):
    """Wait for something to be so."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        await asyncio.sleep(0.002)


def prompt_of(text):
    """A prompt of the toy's."""
    return tuple(LETTERS.index(letter) for letter in text)


@cache
def alone(model, job):
    """The text of a job that decodes in a batch of one, cut where its stop strings say."""
    steps = decode(
        model,
        [list(job.prompt)],
        job.recipe,
        generators=RowGenerators([job.seed], model.device),
        max_new_tokens=None if job.most is None else [job.most],
        in_chat={job.in_chat},
    )
    ((done, recipe),) = [(done, step.recipe) for step in steps for done in step.finished]
    text = build_generation(model, done, recipe, list(job.prompt), 0.0).text
    return stopped(text, job.stop)


def stopped(text, stops):
    """The text before the stop string that is complete first."""
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text[: sum(min(found))] if found else text


async def heard(stream):
    """The texts of a stream one by one, and its answer."""
    texts, answer = [], None
    async for event in stream:
        if isinstance(event, TextDelta):
            texts.append(event.text)
        if isinstance(event, RequestFinished):
            answer = event
    return texts, answer


async def outcome(stream):
    """The text of an answer that was streamed, or the name of what was said instead."""
    try:
        texts, answer = await heard(stream)
    except Exception as refusal:
        return type(refusal).__name__
    assert "".join(texts) == answer.text
    return answer.text


def job(text, recipe, **more):
    return ServerRequest(prompt_of(text), recipe, **more)


class Short(Toy):
    """The toy, with few slots, so that answers are short."""

    slots = 8


SHORT = Short()  # what those below write where nothing happens to them


class Misbehaving(Short):
    """The toy, whose every pass something is done to."""

    def __init__(self, pause=0.0, hazard=0.05):
        super().__init__(hazard)
        self.pause, self.calls, self.rows = pause, 0, []
        self._lock = threading.Lock()

    def __call__(self, tokens, read, *, valid=None, stale=None, storage=None):
        with self._lock:
            self.calls += 1
            self.rows.append(len(tokens))
        time.sleep(self.pause)
        marked = self.marked(tokens, valid)
        logits = super().__call__(tokens, read, valid=valid, stale=stale, storage=storage)
        return self.act(logits, tokens, marked)

    def act(self, logits, tokens, marked):
        return logits

    def marked(self, tokens, valid):
        """Rows whose prompt begins with the mark."""
        first = torch.zeros(len(tokens), dtype=torch.long)
        if valid is not None:
            first = valid.int().argmax(-1)
        columns = (first[:, None] + torch.arange(len(MARK))).clamp(max=tokens.shape[1] - 1)
        return (tokens.gather(1, columns) == torch.tensor(prompt_of(MARK))).all(-1)

    def written(self, tokens):
        """Letters of each row, its prompt's and those that were written."""
        return (tokens < len(LETTERS)).sum(-1)


class Poisoned(Misbehaving):
    """No number comes of a marked row; with `after`, once it has so many letters."""

    def __init__(self, after=0, **more):
        super().__init__(**more)
        self.after = after

    def act(self, logits, tokens, marked):
        bad = marked & (self.written(tokens) >= self.after)
        return torch.where(bad[:, None, None], torch.nan, logits)


class Narrow(Misbehaving):
    """Memory for so many rows and no more; a marked row never fits."""

    def __init__(self, most, **more):
        super().__init__(**more)
        self.most = most

    def act(self, logits, tokens, marked):
        if len(tokens) > self.most or bool((marked & (self.written(tokens) > len(MARK))).any()):
            raise torch.OutOfMemoryError("CUDA out of memory (of a test)")
        return logits


class Stumbling(Misbehaving):
    """Fails in some calls, whoever takes part."""

    def __init__(self, *failing, **more):
        super().__init__(**more)
        self.failing = failing

    def act(self, logits, tokens, marked):
        if self.calls in self.failing:
            raise RuntimeError("a stumble (of a test)")
        return logits
