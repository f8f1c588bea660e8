"""The engine: a thread that decodes requests in running batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Literal

import torch
from torch import Tensor

from lastword.api import build_generation, default_batch_size, predict_length
from lastword.canvas.canvas import validate_prompts
from lastword.canvas.cost import TokenCost
from lastword.canvas.tree import tree_map, tree_to
from lastword.decoding.batch_state import max_slots
from lastword.decoding.loop import Step, decode_steps
from lastword.decoding.planning import PlannedRequest, plan_lengths
from lastword.decoding.running_batch import CPU, FinishedRow, RequestQueue
from lastword.decoding.sampling import RowGenerators
from lastword.errors import CheckpointError, LastwordError, SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.detokenizer import IncrementalDetokenizer
from lastword.serve.metrics import EngineObserver, PrometheusMetrics
from lastword.serve.request import (
    REQUEST_ERRORS,
    DeadlineExceededError,
    DeadlineUnreachableError,
    DecodingFailedError,
    DrainingError,
    EventStream,
    FrameEvent,
    OverloadedError,
    RequestFinished,
    ServerRequest,
    TextDelta,
)
from lastword.serve.request import RequestPlanned as Announced
from lastword.serve.scheduler import (
    PaceEstimator,
    PredictedWork,
    QueuedRequest,
    Scheduler,
    TokenCostEstimator,
    uncached_tokens,
)
from lastword.serve.settings import ServerSettings
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Interpretation
from lastword.validation import MAX_SLOTS
from lastword.viz.frames import RowTrace, confidences

MIN_PROMPT_TOKENS = 256  # tokens of a prompt that every session has room for


class DecodeSession(RequestQueue):
    """Slots for one settled recipe and prompts of up to `longest` tokens.

    Whoever drives it hands in tickets and takes a step at a time. It is over when nobody is at work.
    """

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        *,
        slots: int,
        longest: int,
        columns: int | None = None,
    ) -> None:
        self.recipe, self.slots = recipe, slots
        self.longest = max(MIN_PROMPT_TOKENS, 1 << (longest - 1).bit_length())  # so that most prompts fit
        self.spent = 0.0  # seconds a row has had of it, to be compared with others
        self.at_work: set[int] = set()  # numbers of tickets, those that were just handed in included
        self._coming: list[PlannedRequest] = []
        self._dropped: set[int] = set()
        self._steps = decode_steps(
            model,
            recipe,
            self,
            max_batch_size=slots,
            max_prompt_tokens=self.longest,
            use_cuda_graphs=True,
            pool_tokens=columns,
        )

    def holds(self, recipe: Recipe, prompt: int) -> bool:
        """Is there room for a row of this recipe, with so long a prompt?"""
        fits = recipe == self.recipe and prompt <= self.longest
        return fits and len(self.at_work) < self.slots

    def add(self, ticket: PlannedRequest) -> None:
        """Let it take a slot before the next step; there must be one."""
        self._coming.append(ticket)
        self.at_work.add(ticket.request_id)

    def drop(self, number: int) -> None:
        """Free its slot before the next step."""
        self._coming = [ticket for ticket in self._coming if ticket.request_id != number]
        self._dropped.add(number)
        self.at_work.discard(number)

    def step(self) -> Step | None:
        """The next pass; None: nobody is at work. What a part or the model raises ends the session."""
        step = next(self._steps, None)
        for done in () if step is None else step.finished:
            self.at_work.discard(done.request_id)
        return step

    def close(self) -> None:
        """Give back what decoding holds, now: the decoding knows its queue, so it is not freed by itself."""
        self._steps.close()

    def take(self, free: int) -> Sequence[PlannedRequest]:
        taken, self._coming = self._coming[:free], self._coming[free:]
        return taken

    def cancelled(self) -> Collection[int]:
        dropped, self._dropped = self._dropped, set()
        return dropped


@dataclass(frozen=True, eq=False)
class PlannedWork:
    """What a job's probe came to."""

    plan: Plan
    probe_cost: TokenCost
    predicted: PredictedWork


@dataclass(eq=False)
class ActiveRequest:
    """A job under way: first it is planned, then it waits, then it has a session and a slot there."""

    number: int
    stream: EventStream
    recipe: Recipe  # as it was settled
    prompt: Tensor
    arrived: float
    committed: IncrementalDetokenizer
    trace: RowTrace | None = None  # of a job that asked for frames
    planned: PlannedWork | None = None
    session: DecodeSession | None = None
    reserved: int = 0  # columns
    columns: int = 0  # computed so far
    passes: int = 0  # taken so far
    began: float | None = None  # when it took a slot
    told: float | None = None  # when its first text went out
    alone: bool = False  # must it decode alone, since a pass that it took part in failed?

    @property
    def job(self) -> ServerRequest:
        return self.stream.job

    @property
    def deadline(self) -> float:
        seconds = self.job.seconds
        return float("inf") if seconds is None else self.arrived + seconds


class DecodeWorker:
    """Rows in, answers out. Only the engine's thread comes here; everything else reads numbers.

    Those that came are probed in one batch, the shortest predicted take free slots, and a pass goes to the
    recipe whose rows have had the least time.
    """

    def __init__(
        self, model: MaskPredictor, limits: ServerSettings, schedule: Scheduler, metrics: EngineObserver
    ) -> None:
        self._model, self._limits, self._metrics = model, limits, metrics
        self._schedule = schedule
        self.slots = limits.slots  # rows at once; fewer after the memory was full
        self.pace, self.volume = PaceEstimator(), TokenCostEstimator()
        self.rows: dict[int, ActiveRequest] = {}  # all that are not answered yet, by number
        self._unplanned: list[ActiveRequest] = []
        self._waiting: list[QueuedRequest[ActiveRequest]] = []
        self._sessions: list[DecodeSession] = []
        self._longest = 1  # tokens of a prompt so far

    def take(self, row: ActiveRequest) -> None:
        """A job came."""
        self.rows[row.number] = row
        self._unplanned.append(row)
        self._metrics.arrived(len(row.prompt))

    def work(self) -> None:
        """All there is to do before the next pass, and the pass."""
        self._let_go()
        self._plan()
        self._admit()
        self._metrics.now(len(self._at_work), len(self.rows) - len(self._at_work), self.slots)
        self._step()

    def refuse_all(self) -> None:
        """End every row that is left."""
        for row in list(self.rows.values()):
            said = DrainingError("the server stopped before the answer was complete; ask again later")
            self._end(row, "refused", said)
        for session in self._sessions:
            session.close()

    @property
    def seconds_of_work(self) -> float:
        """How long those that wait and those at work are likely to take, all slots together."""
        seconds = 0.0
        for row in list(self.rows.values()):
            known = row.planned
            tokens = self._model.default_max_new_tokens / 2 if known is None else known.predicted.tokens
            seconds += self.pace.seconds(row.recipe, tokens, row.passes)
        return seconds / self.slots

    @property
    def columns_of_work(self) -> float:
        """Columns that those that wait and those at work are likely to take yet."""
        columns, half = 0.0, self._model.default_max_new_tokens / 2
        for row in list(self.rows.values()):
            known = None if row.planned is None else row.planned.predicted
            tokens, slots = (half, int(half)) if known is None else (known.tokens, known.slots)
            columns += self.volume.left(row.recipe, tokens, len(row.prompt) + slots, row.columns)
        return columns

    @property
    def at_work(self) -> int:
        """Rows that have a slot."""
        return sum(len(session.at_work) for session in list(self._sessions))

    @property
    def _at_work(self) -> list[ActiveRequest]:
        return [row for row in self.rows.values() if row.session is not None]

    def _let_go(self) -> None:
        """Rows that nobody waits for any more, and rows that are too late."""
        now = time.monotonic()
        for row in list(self.rows.values()):
            if row.stream.cancelled:
                self._end(row, "cancelled")
            elif now > row.deadline:
                said = (
                    f"the answer was not complete after {row.job.seconds:g} seconds; give it a longer "
                    "timeout, or ask for less"
                )
                self._end(row, "expired", DeadlineExceededError(said))

    def _plan(self) -> None:
        """One batch of probes, for the recipe of whoever has waited longest.

        While nobody is at work it is a large one: those that came together are told apart before any begins.
        """
        if not self._unplanned:
            return
        recipe = self._unplanned[0].recipe
        most = self._limits.slots if self._sessions else default_batch_size(self._model)
        batch = [row for row in self._unplanned if row.recipe == recipe][:most]
        self._unplanned = [row for row in self._unplanned if row not in batch]
        for row in self._apart(batch, self._probe):
            self._queue(row)

    def _probe(self, rows: list[ActiveRequest]) -> None:
        began, recipe = time.monotonic(), rows[0].recipe
        plans = plan_lengths(
            self._model,
            recipe,
            [row.prompt for row in rows],
            max_new_tokens=[row.job.most or MAX_SLOTS for row in rows],
        )
        for row, (plan, cost) in zip(rows, plans):
            row.planned = PlannedWork(plan, cost, PredictedWork.of(recipe, plan))
        self._metrics.probed(len(rows), time.monotonic() - began)

    def _apart(
        self, rows: list[ActiveRequest], act: Callable[[list[ActiveRequest]], None]
    ) -> Iterator[ActiveRequest]:
        """Rows for which something could be done: together, or else alone; the others are refused."""
        try:
            act(rows)
            yield from rows
        except Exception as error:
            if len(rows) == 1:
                self._end(rows[0], "failed", _client_error(error))
                return
            for row in rows:
                yield from self._apart([row], act)

    def _queue(self, row: ActiveRequest) -> None:
        """A row that was planned waits, unless it would be too late however well it went."""
        assert row.planned is not None
        plan, predicted = row.planned.plan, row.planned.predicted
        seconds = self.pace.shortest_pass * predicted.fewest
        if time.monotonic() + seconds > row.deadline:
            said = (
                f"about {predicted.tokens:.0f} tokens are predicted, which take at least {predicted.fewest} "
                f"passes and {seconds:.1f} seconds: more than is left of the {row.job.seconds:g} that were "
                "given; give a longer timeout"
            )
            self._end(row, "refused", DeadlineUnreachableError(said))
            return
        row.stream.put(Announced(plan.lengths, plan.max_horizon, row.recipe.max_passes(plan.max_horizon)))
        self._wait(row)

    def _wait(self, row: ActiveRequest) -> None:
        assert row.planned is not None
        predicted = row.planned.predicted
        columns = len(row.prompt) + predicted.slots
        self._waiting.append(QueuedRequest(row, row.arrived, 0.0, columns))

    def _admit(self) -> None:
        """Let those that wait take free slots, the shortest predicted first."""
        if self._at_work and not self._schedule.refills:
            return
        for waiting in self._waiting:  # what is known of the pace changes while they wait
            assert waiting.job.planned is not None
            tokens = waiting.job.planned.predicted.tokens
            waiting.seconds = self.pace.seconds(waiting.job.recipe, tokens)
        budget = self._limits.columns or self.slots * self._model.max_seq_len
        while self._waiting and len(at_work := self._at_work) < self.slots:
            free = budget - sum(row.reserved for row in at_work)
            chosen = self._schedule.first(self._waiting, free, alone=not at_work)
            if chosen is None:
                return
            self._waiting.remove(chosen)
            chosen.job.reserved = chosen.columns
            self._begin(chosen.job)

    def _begin(self, row: ActiveRequest) -> None:
        assert row.planned is not None
        row.session = self._session(row)
        row.began = row.began or time.monotonic()
        dice = RowGenerators([row.job.seed], self._model.device)
        plan, cost, row.columns, row.passes = row.planned.plan, row.planned.probe_cost, 0, 0
        row.session.add(PlannedRequest(row.number, row.prompt, plan, cost, dice))
        if row.job.frames:
            row.trace = RowTrace(self._model.tokenizer, self._model.ids)
            row.stream.put(FrameEvent(row.trace.begin([self._model.ids.mask] * plan.max_horizon)))

    def _session(self, row: ActiveRequest) -> DecodeSession:
        """The newest of its recipe that has room for it, or a new one, with room for any prompt so far."""
        for session in reversed(self._sessions):
            if not row.alone and session.holds(row.recipe, len(row.prompt)):
                return session
        self._longest = max(self._longest, len(row.prompt))
        slots = 1 if row.alone else self.slots
        session = DecodeSession(
            self._model,
            row.recipe,
            slots=slots,
            longest=self._longest,
            columns=self._limits.columns,
        )
        session.spent = min((other.spent for other in self._sessions), default=0.0)
        self._sessions.append(session)
        return session

    def _step(self) -> None:
        """One pass, of the session whose rows have had the least time so far."""
        for over in [session for session in self._sessions if not session.at_work]:
            over.close()
            self._sessions.remove(over)
        if not self._sessions:
            return
        session = min(self._sessions, key=lambda own: own.spent)
        rows = [self.rows[number] for number in session.at_work]
        began = time.monotonic()
        try:
            step = session.step()
        except Exception as error:
            self._begin_anew(session, rows, error)
            return
        seconds = time.monotonic() - began
        session.spent += seconds / len(rows)
        if step is not None:
            self.pace.passed(seconds)
            self._count(step, rows, seconds)
            self._publish(step)

    def _begin_anew(self, session: DecodeSession, rows: list[ActiveRequest], error: Exception) -> None:
        """A pass failed: each of its rows begins anew alone, and the one that fails again is refused.

        A row that begins anew writes what it wrote before, so what went out stays true. Where memory was
        short, fewer rows share a pass from now on instead.
        """
        self._sessions.remove(session)
        short = is_out_of_memory(error)
        if short and len(rows) > 1:
            self.slots = min(self.slots, max(1, len(rows) // 2))
            log.warning("memory was short: %d rows at once from now on", self.slots)
        for row in rows:
            row.session, row.reserved = None, 0
            if len(rows) == 1 and (row.alone or not short):
                self._end(row, "failed", _client_error(error))
                continue
            row.alone = row.alone or not short or len(rows) == 1
            self._wait(row)

    def _count(self, step: Step, rows: list[ActiveRequest], seconds: float) -> None:
        """Columns of this pass: those of its rows, and with the padding of shorter ones."""
        spent = dict(zip(step.request_ids, step.cost.tokens_computed.tolist()))
        horizon = dict(zip(step.request_ids, step.canvas.horizon.tolist()))
        columns = sum(spent[row.number] - row.columns for row in rows)
        padded = columns
        if not step.recipe.cache.traits.stores_states:
            widest = max(len(row.prompt) for row in rows) + max(horizon[row.number] for row in rows)
            padded = len(rows) * widest
        passes = dict(zip(step.request_ids, step.cost.forward_passes.tolist()))
        for row in rows:
            row.columns, row.passes = spent[row.number], passes[row.number]
        self._metrics.passed(len(rows), columns, max(columns, padded), seconds)

    def _publish(self, step: Step) -> None:
        done = {own.request_id: own for own in step.finished}
        start, tokens = step.canvas.start, step.canvas.tokens.tolist()
        for slot, horizon in enumerate(step.canvas.horizon.tolist()):
            row = self.rows.get(step.request_ids[slot] or 0)
            if row is None:
                continue
            answer, finished = tokens[slot][start : start + horizon], done.get(row.number)
            try:
                self._tell(row, step, slot, answer, complete=finished is not None)
                if finished is None and row.committed.stopped is not None:
                    finished = _finish_early(step, slot)
                if finished is not None:
                    self._answer(row, finished)
            except Exception as error:  # a tokenizer is others' code
                self._end(row, "failed", _client_error(error))
                continue
            if finished is None and len(row.prompt) + horizon > row.reserved:
                row.reserved = len(row.prompt) + horizon
                self._metrics.outgrown()

    def _tell(self, row: ActiveRequest, step: Step, slot: int, answer: list[int], *, complete: bool) -> None:
        """What of this step the reader hears."""
        more = row.committed.read(answer, complete=complete)
        if row.trace is not None and (cost := step.cost.row(slot)).forward_passes > row.trace.passes:
            sure = confidences(step, slot)
            frame = row.trace.after(answer, sure, cost.tokens_computed, forward_passes=cost.forward_passes)
            row.stream.put(FrameEvent(frame))
        if more:
            row.told = row.told or time.monotonic()
            row.stream.put(TextDelta(more))

    def _answer(self, row: ActiveRequest, done: FinishedRow) -> None:
        assert row.planned is not None
        assert row.began is not None
        now, stopped, predicted = time.monotonic(), row.committed.stopped, row.planned.predicted
        generation = build_generation(self._model, done, row.recipe, row.prompt.tolist(), now - row.arrived)
        answer = RequestFinished(
            generation,
            row.committed.text,
            row.committed.count,
            stopped is None and generation.finish.name != "ENDED",
            stopped,
            row.began - row.arrived,
            now - row.began,
        )
        if stopped is None:
            self.pace.learn(row.recipe, predicted.tokens, done.cost.forward_passes)
            width = len(row.prompt) + predicted.slots
            self.volume.learn(row.recipe, uncached_tokens(predicted.tokens, width), done.cost.tokens_computed)
        first_text = None if row.told is None else row.told - row.arrived
        self._metrics.answered(answer, predicted, first_text)
        row.stream.put(answer)
        self._end(row, "answered")

    def _end(self, row: ActiveRequest, how: str, error: LastwordError | None = None) -> None:
        """Forget a row, whatever it has come to."""
        if row.session is not None:
            row.session.drop(row.number)
        self._unplanned = [own for own in self._unplanned if own is not row]
        self._waiting = [own for own in self._waiting if own.job is not row]
        del self.rows[row.number]
        self._metrics.ended(how)
        if error is not None:
            row.stream.put(error)


def _finish_early(step: Step, slot: int) -> FinishedRow:
    """A row that a stop string ended before all of it was decoded."""
    canvas = tree_to(tree_map(lambda rows: rows[slot : slot + 1], step.canvas), CPU)
    ticket, plan = step.requests[slot], step.requests[slot].plan
    return FinishedRow(
        ticket.request_id,
        canvas,
        plan.max_horizon,
        plan.lengths,
        ticket.probe_cost,
        step.cost.row(slot),
    )


def _client_error(error: Exception) -> LastwordError:
    """What to say of a job that failed: what is wrong with its request, or else the kind of the error."""
    if isinstance(error, REQUEST_ERRORS):
        return error
    log.error("a job failed", exc_info=error)
    said = str(error) if isinstance(error, LastwordError) else type(error).__name__
    return DecodingFailedError(f"decoding this answer failed: {said}")


def is_out_of_memory(error: Exception) -> bool:
    """Was there no memory left?"""
    short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return short or "allocate memory" in str(error)


EngineState = Literal["starting", "ready", "draining", "stopped"]
IDLE_SECONDS = 0.05  # seconds between two looks at the clock while there is nothing to do
WARMUP_SLOTS = 32  # slots of the probe that warms up

log = logging.getLogger("lastword.serve")


@dataclass(frozen=True, eq=False)
class LengthQuery:
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
        limits: ServerSettings = ServerSettings(),
        schedule: Scheduler = Scheduler(),
        observer: EngineObserver | None = None,  # None: metrics for Prometheus
    ) -> None:
        if model.tokenizer is None:
            raise CheckpointError(
                "a model without a tokenizer was given to serve, and answers are texts; add tokenizer.json "
                "to its folder"
            )
        self.model, self.limits, self.metrics = model, limits, observer or PrometheusMetrics()
        self.recipe = _resolve_default_recipe(model, limits)
        self.state: EngineState = "starting"
        self.fault: BaseException | None = None  # what stopped it, where nobody asked it to
        self.tokenizer: TextTokenizer = model.tokenizer
        self._worker = DecodeWorker(model, limits, schedule, self.metrics)
        self._inbox: SimpleQueue[ActiveRequest | LengthQuery | None] = SimpleQueue()
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

    def submit(self, *jobs: ServerRequest) -> list[EventStream]:
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
        question = LengthQuery(list(prompt), limit, ends, reading, loop.create_future(), loop)
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
            raise DrainingError("the server is stopping; ask another one, or this one again later")
        most = self.limits.queue + self.limits.slots
        if count > most:  # waiting would not help
            raise SettingError(
                f"{count} answers were asked for at once; this server has room for {most}: ask for fewer"
            )
        if self.waiting + count > self.limits.queue + self._worker.slots:
            seconds = self._worker.seconds_of_work
            raise OverloadedError(
                f"{self.waiting} answers are in hand, about {seconds:.0f} seconds of work, and at most "
                f"{self.limits.queue} may wait; ask again then",
                retry_after=max(1, round(seconds)),
            )

    def _row(self, job: ServerRequest, loop: asyncio.AbstractEventLoop) -> ActiveRequest:
        (prompt,) = validate_prompts([list(job.prompt)], self.model.ids)
        recipe = resolve(job.recipe, self.model, [prompt], in_chat={job.in_chat})
        self._check_limits(recipe, prompt)
        self._count += 1
        return ActiveRequest(
            self._count,
            EventStream(job, loop),
            recipe,
            prompt,
            time.monotonic(),
            IncrementalDetokenizer(self.tokenizer, self.model.ids, job.stop),
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
                limit=min(WARMUP_SLOTS, self.model.default_max_new_tokens),
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
                heard = self._inbox.get(timeout=IDLE_SECONDS) if idle else self._inbox.get_nowait()
            except Empty:
                return
            idle = False
            if isinstance(heard, ActiveRequest):
                self._worker.take(heard)
            elif heard is not None and not heard.answer.done():  # done: whoever asked has left
                self._ask(heard)
                return

    def _ask(self, question: LengthQuery) -> None:
        try:
            limit, ends, reading = question.limit, question.ends, question.reading
            question.resolve(
                predict_length(self.model, question.prompt, limit=limit, ends=ends, interpretation=reading)
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
                if isinstance(heard, ActiveRequest):
                    self._worker.take(heard)
                elif heard is not None:
                    heard.resolve(DrainingError("the server stopped; ask another one"))
            self._worker.refuse_all()


def _resolve_default_recipe(model: MaskPredictor, limits: ServerSettings) -> Recipe:
    """The recipe of requests that name none, as it runs on the model; refused where it cannot."""
    recipe, horizon = limits.recipe or Recipe(), limits.horizon or model.default_max_new_tokens
    asked = combined_traits(recipe.length).upper_bound
    if asked > horizon:
        raise SettingError(
            f"the server's recipe asks for {asked} slots, and a canvas may have {horizon}; give a shorter "
            "one, or a larger --horizon"
        )
    return resolve(recipe, model, available_slots=horizon)
