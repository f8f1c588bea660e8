"""Engine: the thread that owns the model, and how the event loop reaches it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Literal

from torch import Tensor

from lastword.api import predict_length
from lastword.canvas.canvas import validate_prompts
from lastword.decoding.layout import max_slots
from lastword.errors import CheckpointError, SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.policies.length.wrapper import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.committed import Committed
from lastword.serve.errors import Draining, Overloaded
from lastword.serve.job import Job
from lastword.serve.limits import Limits
from lastword.serve.metrics import Metrics
from lastword.serve.observer import Observer
from lastword.serve.row import Row
from lastword.serve.schedule import Schedule
from lastword.serve.stream import Stream
from lastword.serve.worker import Worker
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Interpretation

State = Literal["starting", "ready", "draining", "stopped"]
IDLE = 0.05  # seconds between two looks at the clock while there is nothing to do
WARMING = 32  # slots of the probe that warms up

log = logging.getLogger("lastword.serve")


@dataclass(frozen=True, eq=False)
class Question:
    """A probe that somebody waits for, and nothing else."""

    prompt: list[int]
    limit: int
    ends: str
    reading: Interpretation
    answer: asyncio.Future[LengthDistribution]
    loop: asyncio.AbstractEventLoop

    def resolve(self, found: LengthDistribution | BaseException) -> None:
        """From the engine's thread."""
        self.loop.call_soon_threadsafe(self._settle, found)

    def _settle(self, found: LengthDistribution | BaseException) -> None:
        if self.answer.done():  # whoever asked has left
            return
        if isinstance(found, BaseException):
            self.answer.set_exception(found)
        else:
            self.answer.set_result(found)


class Engine:
    """One model, one thread. Jobs are handed in from the event loop and heard of through their streams."""

    def __init__(
        self,
        model: MaskPredictor,
        limits: Limits = Limits(),
        schedule: Schedule = Schedule(),
        observer: Observer | None = None,  # None: metrics for Prometheus
    ) -> None:
        if model.tokenizer is None:
            raise CheckpointError(
                "a model without a tokenizer was given to serve, and answers are texts; add tokenizer.json "
                "to its folder"
            )
        self.model, self.limits, self.metrics = model, limits, observer or Metrics()
        self.recipe = _usual(model, limits)
        self.state: State = "starting"
        self.fault: BaseException | None = None  # what stopped it, where nobody asked it to
        self.tokenizer: TextTokenizer = model.tokenizer
        self._worker = Worker(model, limits, schedule, self.metrics)
        self._inbox: SimpleQueue[Row | Question | None] = SimpleQueue()
        self._count = 0  # jobs so far: a job's number
        self._refusing = Lock()
        self._ends: float | None = None  # when those at work are refused
        self._thread = Thread(target=self._run, name="lastword-engine", daemon=True)

    @property
    def waiting(self) -> int:
        """Jobs that were handed in and are not answered."""
        return len(self._worker.rows) + self._inbox.qsize()

    @property
    def seconds_of_work(self) -> float:
        """How long the jobs in hand are predicted to take."""
        return self._worker.seconds_of_work

    @property
    def columns_of_work(self) -> float:
        """Columns that the jobs in hand are predicted to take yet."""
        return self._worker.columns_of_work

    def start(self) -> None:
        """Take jobs, once the model is warm."""
        self._thread.start()

    async def stop(self, seconds: float | None = None) -> None:
        """Drain, and wait until that is done."""
        self.drain(seconds)
        await asyncio.to_thread(self._thread.join)

    def submit(self, *jobs: Job) -> list[Stream]:
        """Hand in jobs, all of them or none; what can be refused before it waits is refused here."""
        self._check_open(len(jobs))
        loop = asyncio.get_running_loop()
        rows = [self._row(job, loop) for job in jobs]
        for row in rows:
            self._inbox.put(row)
        if self.state == "stopped":  # while they were handed in
            self._refuse_all()
        return [row.stream for row in rows]

    async def lengths(
        self, prompt: Sequence[int], limit: int, ends: str, reading: Interpretation
    ) -> LengthDistribution:
        """What one probe says of a prompt, as `lastword.predict_length` does."""
        self._check_open(1)
        loop = asyncio.get_running_loop()
        question = Question(list(prompt), limit, ends, reading, loop.create_future(), loop)
        self._inbox.put(question)
        if self.state == "stopped":  # while it was handed in
            self._refuse_all()
        return await question.answer

    def counts(self) -> dict[str, int]:
        """How many answers have a slot, and how many wait for one."""
        at_work = self._worker.at_work
        return {"working": at_work, "waiting": self.waiting - at_work}

    def drain(self, seconds: float | None = None) -> None:
        """Take no more jobs; those in hand have so long (`limits.drain`), then they are refused."""
        if self.state != "stopped":
            self.state = "draining"
        self._ends = time.monotonic() + (self.limits.drain if seconds is None else seconds)
        self._inbox.put(None)

    def _check_open(self, count: int) -> None:
        if self.state in ("draining", "stopped"):
            raise Draining("the server is stopping; ask another one, or this one again later")
        most = self.limits.queue + self.limits.slots
        if count > most:  # waiting would not help
            raise SettingError(
                f"{count} answers were asked for at once; this server has room for {most}: ask for fewer"
            )
        if self.waiting + count > self.limits.queue + self._worker.slots:
            seconds = self._worker.seconds_of_work
            raise Overloaded(
                f"{self.waiting} answers are in hand, about {seconds:.0f} seconds of work, and at most "
                f"{self.limits.queue} may wait; ask again then",
                retry_after=max(1, round(seconds)),
            )

    def _row(self, job: Job, loop: asyncio.AbstractEventLoop) -> Row:
        (prompt,) = validate_prompts([list(job.prompt)], self.model.ids)
        recipe = resolve(job.recipe, self.model, [prompt], in_chat={job.in_chat})
        self._check_limits(recipe, prompt)
        self._count += 1
        return Row(
            self._count,
            Stream(job, loop),
            recipe,
            prompt,
            time.monotonic(),
            Committed(self.tokenizer, self.model.ids, job.stop),
        )

    def _check_limits(self, recipe: Recipe, prompt: Tensor) -> None:
        most, longest = max_slots(recipe), self.limits.prompt
        allowed = self.limits.horizon or self.model.default_max_new_tokens
        if longest is not None and len(prompt) > longest:
            raise SettingError(
                f"a prompt of {len(prompt)} tokens was given; this server takes at most {longest}"
            )
        if most is None or most > allowed:
            raise SettingError(
                f"a canvas of up to {'any number of' if most is None else most} slots was asked for; this "
                f"server allows {allowed}: give the length a smaller limit"
            )

    def _run(self) -> None:
        """In the engine's thread: hear who came, do a pass, again."""
        try:
            predict_length(
                self.model,
                [self.model.ids.end],
                limit=min(WARMING, self.model.default_max_new_tokens),
            )
            if self.state == "starting":
                self.state = "ready"
            while self._goes_on():
                self._hear()
                self._worker.work()
        except BaseException as fault:
            self.fault = fault
            log.exception("the engine stopped")
        finally:
            self.state = "stopped"
            self._refuse_all()

    def _goes_on(self) -> bool:
        return self._ends is None or (self.waiting > 0 and time.monotonic() < self._ends)

    def _hear(self) -> None:
        """Everyone who came, and one probe of those that want nothing else."""
        idle = not self._worker.rows
        while True:
            try:
                heard = self._inbox.get(timeout=IDLE) if idle else self._inbox.get_nowait()
            except Empty:
                return
            idle = False
            if isinstance(heard, Row):
                self._worker.take(heard)
            elif heard is not None and not heard.answer.done():  # done: whoever asked has left
                self._ask(heard)
                return

    def _ask(self, question: Question) -> None:
        try:
            limit, ends, reading = question.limit, question.ends, question.reading
            question.resolve(
                predict_length(self.model, question.prompt, limit=limit, ends=ends, reading=reading)
            )
        except Exception as error:
            question.resolve(error)

    def _refuse_all(self) -> None:
        """The engine's thread as it stops, and the event loop's where something was handed in since."""
        with self._refusing:
            while True:
                try:
                    heard = self._inbox.get_nowait()
                except Empty:
                    break
                if isinstance(heard, Row):
                    self._worker.take(heard)
                elif heard is not None:
                    heard.resolve(Draining("the server stopped; ask another one"))
            self._worker.refuse_all()


def _usual(model: MaskPredictor, limits: Limits) -> Recipe:
    """The recipe of requests that name none, as it runs on the model; refused where it cannot."""
    recipe, horizon = limits.recipe or Recipe(), limits.horizon or model.default_max_new_tokens
    asked = combined_traits(recipe.length).upper_bound
    if asked > horizon:
        raise SettingError(
            f"the server's recipe asks for {asked} slots, and a canvas may have {horizon}; give a shorter "
            "one, or a larger --horizon"
        )
    return resolve(recipe, model, room=horizon)
