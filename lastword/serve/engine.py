"""The engine: a thread that decodes requests in running batches."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Literal

import torch

from lastword.api import build_generation, default_batch_size, predict_length
from lastword.decoding.detokenizer import IncrementalDetokenizer
from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import FinishedRow, PlannedRequest, plan_lengths
from lastword.decoding.sampling import RowGenerators
from lastword.errors import CheckpointError, LastwordError, SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.policies.length.policy import Plan
from lastword.policies.length.survival import Survival
from lastword.serve.metrics import EngineMetrics
from lastword.serve.probes import LengthProbe, ProbeQueue
from lastword.serve.request import (
    REQUEST_ERRORS,
    EventStream,
    RequestEvent,
    RequestFinished,
    ServerError,
    ServerRequest,
)
from lastword.serve.scheduler import DecodeSession, EngineLoad, PredictedWork, QueuedRequest, Scheduler, WorkEstimator
from lastword.serve.settings import ServerSettings
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Interpretation
from lastword.validation import MAX_SLOTS
from lastword.viz.frames import RowTrace, confidences

IDLE_SECONDS = 0.05  # longest wait for a request before the drain deadline is checked
ESTIMATE_SECONDS = 0.25  # for which refused requests share the estimate of `Retry-After`
WARMUP_SLOTS = 32  # number of masks in the warm-up probe
STALL_SECONDS = 300.0  # a pass that takes longer has stalled, if it also takes ...
STALL_FACTOR = 20  # ... this many times the longest pass so far

log = logging.getLogger("lastword.serve")


@dataclass(eq=False, kw_only=True)
class ActiveRequest(QueuedRequest):
    """A request in the engine, which is first planned, then waits, then has a row in a session."""

    request_id: int
    request: ServerRequest
    index: int  # of the answer in `stream`
    stream: EventStream
    detokenizer: IncrementalDetokenizer
    predicted: PredictedWork  # a guess until the request is planned
    planned: tuple[Plan, TokenCost] | None = None  # with the cost of the probe
    trace: RowTrace | None = None  # only if the request streams frames or wants log-probabilities
    session: DecodeSession | None = None
    started: float | None = None  # when the request first got a row
    first_text: float | None = None  # when the first text was emitted
    tokens_computed: int = 0
    passes_taken: int = 0
    alone: bool = False  # whether the request needs a batch of one, because a pass with its row failed

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    def reserve(self) -> None:
        """Reset to the waiting state, and reserve tokens for the prompt and the predicted answer."""
        self.session, self.overtaken, self.reserved_tokens = None, 0, self.prompt_tokens + self.predicted.slots

    def emit(self, event: RequestEvent | BaseException) -> None:
        """Add an event or an error to the stream."""
        self.stream.put(self.index, event)


class DecodeWorker:
    """The unfinished requests of an engine and their sessions; only the engine's thread calls `run_pass`.

    Length probes get a share of the time. New requests of one recipe are probed in one batch, the scheduler chooses
    which waiting requests get free rows, and each forward pass is run for the session that has used the least time per
    row.
    """

    def __init__(
        self, model: MaskPredictor, settings: ServerSettings, scheduler: Scheduler, metrics: EngineMetrics
    ) -> None:
        self._model, self._settings, self._scheduler = model, settings, scheduler
        self._metrics = metrics
        self.max_batch_size = settings.max_batch_size  # halved when memory runs out
        self.estimator = WorkEstimator()
        self.requests: dict[int, ActiveRequest] = {}  # all unfinished answers by id
        self._probe_queue = ProbeQueue(model, metrics)
        self._sessions: list[DecodeSession] = []
        self._longest_prompt = 1

    def add(self, request: ActiveRequest | LengthProbe) -> None:
        """Add a new request, which the next `run_pass` can plan, or a length probe."""
        if isinstance(request, LengthProbe):
            self._probe_queue.probes.append(request)
        else:
            self.requests[request.request_id] = request

    def run_pass(self) -> None:
        """Run length probes if it is their turn; plan and admit requests, then run one forward pass of one session."""
        self._drop_cancelled()
        self._probe_queue.run_batch(self._probe_rows, has_answers=bool(self.requests))
        started = time.monotonic()
        self._plan()
        self._admit()
        self._metrics.running.set(self.num_running)
        self._metrics.waiting.set(self.num_unfinished - self.num_running)
        self._metrics.max_batch_size.set(self.max_batch_size)
        self._step()
        self._probe_queue.answer_seconds_due -= time.monotonic() - started

    def refuse_all(self) -> None:
        """End every unfinished request and length probe with an error, and close all sessions."""
        self._probe_queue.end(math.inf, ServerError("the server stopped; use another one", "draining"))
        for request in list(self.requests.values()):
            message = "the server stopped before the answer was complete; try again later"
            self._end(request, "refused", ServerError(message, "draining"))
        for session in self._sessions:
            session.close()

    @property
    def num_unfinished(self) -> int:
        """Number of unfinished answers and length probes."""
        return len(self.requests) + len(self._probe_queue.probes)

    @property
    def num_running(self) -> int:
        """Number of requests that have a row."""
        return sum(len(session.running) for session in list(self._sessions))

    def load(self) -> EngineLoad:
        """Return the current load; any thread may call this."""
        running, unfinished = self.num_running, self.num_unfinished
        seconds, tokens = self._probe_queue.load()
        for active in list(self.requests.values()):
            recipe, predicted = active.request.recipe, active.predicted
            width = active.prompt_tokens + predicted.slots
            row_seconds = self.estimator.seconds(recipe, predicted.tokens, active.passes_taken)
            seconds += row_seconds / self.max_batch_size
            tokens += self.estimator.remaining_tokens(recipe, predicted.tokens, width, active.tokens_computed)
        return EngineLoad(running, max(0, unfinished - running), seconds, tokens)

    def _drop_cancelled(self) -> None:
        """End requests of cancelled streams and requests past their deadline."""
        now = time.monotonic()
        for active in list(self.requests.values()):
            if active.stream.cancelled:
                self._end(active, "cancelled")
            elif now > active.deadline:
                message = f"the answer was not complete after {active.request.timeout:g} seconds; give a longer timeout"
                self._end(active, "expired", ServerError(message, "deadline_exceeded"))

    def _plan(self) -> None:
        """Probe the new requests that have the recipe of the oldest one, in one batch of limited size."""
        new = [active for active in self.requests.values() if active.planned is None]
        alike = [active for active in new if active.request.recipe == new[0].request.recipe]
        if alike:
            self._probe(alike[: self._probe_rows])

    @property
    def _probe_rows(self) -> int:
        """Maximum number of prompts in a batch of probes."""
        return self._settings.max_batch_size if self._sessions else default_batch_size(self._model)

    def _probe(self, batch: list[ActiveRequest]) -> None:
        """Plan requests of one recipe with one batch of probes, or one by one if the batch fails."""
        started, recipe = time.monotonic(), batch[0].request.recipe
        prompts = [torch.tensor(active.request.prompt_ids) for active in batch]
        caps = [active.request.max_new_tokens or MAX_SLOTS for active in batch]
        try:
            plans = plan_lengths(self._model, recipe, prompts, max_new_tokens=caps)
            predicted = [PredictedWork.of(recipe, plan) for plan, _ in plans]
        except Exception as error:
            if len(batch) == 1:
                self._end(batch[0], "failed", client_error(error))
            else:
                for active in batch:
                    self._probe([active])
            return
        self._metrics.probe_seconds.observe(time.monotonic() - started)
        self._metrics.probes.inc(len(batch))
        for active, planned, work in zip(batch, plans, predicted):
            active.planned, active.predicted = planned, work
            self._queue(active, planned[0])

    def _queue(self, active: ActiveRequest, plan: Plan) -> None:
        """Put a planned request into the waiting state, or refuse it if its deadline cannot be met."""
        predicted = active.predicted
        seconds = self.estimator.shortest_pass * predicted.min_passes
        if time.monotonic() + seconds > active.deadline:
            message = (
                f"about {predicted.tokens:.0f} tokens are predicted, in at least {predicted.min_passes} forward passes "
                f"and {seconds:.1f} seconds; give a longer timeout than {active.request.timeout:g} seconds"
            )
            self._end(active, "refused", ServerError(message, "deadline_unreachable"))
        else:
            active.reserve()
            active.emit(plan)

    def _admit(self) -> None:
        """Start waiting requests in free rows."""
        planned = [active for active in self.requests.values() if active.planned is not None]
        running = [active for active in planned if active.session is not None]
        waiting = [active for active in planned if active.session is None]
        if not waiting or len(running) >= self.max_batch_size or (running and not self._scheduler.refills):
            return
        for active in planned:  # estimates change while requests wait
            passes = active.passes_taken if active.session is not None else 0
            active.predicted_seconds = self.estimator.seconds(active.request.recipe, active.predicted.tokens, passes)
        budget = self._settings.max_reserved_tokens or self.max_batch_size * self._model.max_seq_len
        fitting = budget * len(planned) // sum(active.reserved_tokens for active in planned)
        rows, now = max(1, min(self.max_batch_size, fitting)), time.monotonic()
        while waiting and len(running) < self.max_batch_size:
            free = budget - sum(active.reserved_tokens for active in running)
            chosen = self._scheduler.next_request(waiting, running, free, rows=rows, now=now)
            if chosen is None:
                return
            waiting.remove(chosen)
            self._start(chosen)
            running.append(chosen)

    def _start(self, active: ActiveRequest) -> None:
        if active.planned is None:
            raise RuntimeError("a request was started before its length was planned")
        (plan, cost), request = active.planned, active.request
        active.session = self._session_for(active)
        active.started = active.started or time.monotonic()
        active.tokens_computed = active.passes_taken = 0
        prompt = torch.tensor(request.prompt_ids)
        generators = RowGenerators([request.seed], self._model.device)  # a restarted row draws the same numbers
        active.session.add(PlannedRequest(active.request_id, prompt, plan, cost, generators, request.stop))
        if request.stream_frames or request.logprobs:
            active.trace = RowTrace(self._model.tokenizer, self._model.ids)
            frame = active.trace.begin([self._model.ids.mask] * plan.max_horizon)
            if request.stream_frames:
                active.emit(frame)

    def _session_for(self, active: ActiveRequest) -> DecodeSession:
        """Return the newest session that has a free row for the request, or a new session."""
        uses_graphs = self._model.device.type == "cuda" and not active.request.logprobs  # a replay keeps no logits
        for session in reversed(self._sessions):
            has_room = session.has_room(active.request.recipe, active.prompt_tokens)
            if not active.alone and session.uses_graphs == uses_graphs and has_room:
                return session
        self._longest_prompt = max(self._longest_prompt, active.prompt_tokens)
        session = DecodeSession(
            self._model,
            active.request.recipe,
            max_batch_size=1 if active.alone else self.max_batch_size,
            prompt_tokens=self._longest_prompt,
            pool_tokens=self._settings.max_reserved_tokens,
            uses_graphs=uses_graphs,
        )
        session.row_seconds = min((other.row_seconds for other in self._sessions), default=0.0)
        self._sessions.append(session)
        return session

    def _step(self) -> None:
        """Close sessions without rows; run a pass of the session that used the least time per row."""
        for session in [session for session in self._sessions if not session.running]:
            session.close()
            self._sessions.remove(session)
        if not self._sessions:
            return
        session = min(self._sessions, key=lambda session: session.row_seconds)
        rows = [self.requests[request_id] for request_id in session.running]
        started = time.monotonic()
        try:
            step = session.step()
        except Exception as error:
            self._restart(session, rows, error)
            return
        ended = time.monotonic()
        session.row_seconds += (ended - started) / len(rows)
        if step is not None:
            self._count(step, rows, ended - started, ended - session.last_pass)
            self._publish(step)
        session.last_pass = ended

    def _restart(self, session: DecodeSession, rows: list[ActiveRequest], error: Exception) -> None:
        """Restart the rows of a failed pass, each in a batch of one; end a row that failed alone with an error.

        A restarted row decodes the same text again, so text that was already streamed stays valid. If memory ran out,
        the maximum batch size is reduced instead.
        """
        self._sessions.remove(session)
        is_memory_error = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        out_of_memory = is_memory_error or "allocate memory" in str(error)
        if out_of_memory and len(rows) > 1:
            self.max_batch_size = min(self.max_batch_size, max(1, len(rows) // 2))
            log.warning("out of memory: at most %d rows per batch from now on", self.max_batch_size)
        for active in rows:
            if len(rows) == 1 and (active.alone or not out_of_memory):
                active.session = None
                self._end(active, "failed", client_error(error))
            else:
                active.alone = active.alone or not out_of_memory or len(rows) == 1
                active.reserve()

    def _count(self, step: Step, rows: list[ActiveRequest], seconds: float, interval: float) -> None:
        """Count the passes and tokens of a step that ended `interval` seconds after the previous one of its session."""
        computed = dict(zip(step.request_ids, step.cost.tokens_computed.tolist()))
        passes = dict(zip(step.request_ids, step.cost.forward_passes.tolist()))
        horizons = dict(zip(step.request_ids, step.canvas.horizon.tolist()))
        tokens = padded = sum(computed[active.request_id] - active.tokens_computed for active in rows)
        row_passes = [passes[active.request_id] - active.passes_taken for active in rows]
        num_passes = max(1, *row_passes)
        if not step.recipe.cache.traits.stores_states:
            horizon = max(horizons[active.request_id] for active in rows)
            width = max(active.prompt_tokens for active in rows) + horizon
            padded = max(tokens, num_passes * len(rows) * width)
        for active in rows:
            active.tokens_computed = computed[active.request_id]
            active.passes_taken = passes[active.request_id]
        self.estimator.observe_pass(rows[0].request.recipe, seconds / num_passes, interval / num_passes)
        self._metrics.count_passes(num_passes, sum(row_passes), tokens, padded, seconds)

    def _publish(self, step: Step) -> None:
        """Emit the events of a step to the streams of its rows."""
        finished = {row.request_id: row for row in step.finished}
        start, tokens, horizons = step.canvas.start, step.canvas.tokens.tolist(), step.canvas.horizon.tolist()
        for row, request_id in enumerate(step.request_ids):
            active = self.requests.get(request_id or 0)
            if active is not None:
                answer_ids = tokens[row][start : start + horizons[row]]
                try:
                    self._publish_row(active, step, row, answer_ids, finished.get(active.request_id))
                except Exception as error:  # tokenizers are third-party code and may raise anything
                    self._end(active, "failed", client_error(error))

    def _publish_row(
        self, active: ActiveRequest, step: Step, row: int, answer_ids: list[int], finished: FinishedRow | None
    ) -> None:
        """Emit the text that became final, or the canvas as a frame, and the answer if the row is finished."""
        delta = active.detokenizer.update(answer_ids, finished=finished is not None)
        if delta and active.first_text is None:
            active.first_text = time.monotonic()
        if delta and not active.request.stream_frames:
            active.emit(delta)
        if active.trace is not None and (cost := step.cost.row(row)).forward_passes > active.trace.passes:
            tokens, passes, confidence = cost.tokens_computed, cost.forward_passes, confidences(step, row)
            frame = active.trace.after(answer_ids, confidence, tokens, forward_passes=passes)
            if active.request.stream_frames:
                active.emit(frame)
        if finished is not None:
            self._finish(active, finished, step.graph_fallbacks)
        elif active.prompt_tokens + len(answer_ids) > active.reserved_tokens:
            active.reserved_tokens = active.prompt_tokens + len(answer_ids)
            self._metrics.overruns.inc()

    def _finish(self, active: ActiveRequest, row: FinishedRow, graph_fallbacks: int) -> None:
        now, request = time.monotonic(), active.request
        started = active.started or now
        prompt = list(request.prompt_ids)
        generation = build_generation(self._model, row, request.recipe, prompt, graph_fallbacks=graph_fallbacks)
        # If masks are left, the answer ends before the first one, because no more text was streamed.
        tokens = generation.tokens[: active.detokenizer.num_tokens]
        generation = replace(generation, text=active.detokenizer.text, tokens=tokens)
        logprobs = active.trace.logprobs(len(tokens)) if request.logprobs and active.trace else None
        answer = RequestFinished(generation, started - active.arrived, now - started, logprobs)
        if generation.stop_reason is None:
            self.estimator.observe_answer(request.recipe, active.predicted, active.prompt_tokens, row.cost)
        first_text = None if active.first_text is None else active.first_text - active.arrived
        self._metrics.count_answer(answer, active.predicted, first_text)
        active.emit(answer)
        self._end(active, "answered")

    def _end(self, active: ActiveRequest, outcome: str, error: LastwordError | None = None) -> None:
        """Remove a request from its session and the engine, count its outcome, and emit the error if any."""
        if active.session is not None:
            active.session.remove(active.request_id)
        del self.requests[active.request_id]
        self._metrics.outcomes.labels(outcome).inc()  # answered, cancelled, expired, refused or failed
        if error is not None:
            active.emit(error)


def client_error(error: Exception) -> LastwordError:
    """Return a request error unchanged; log any other, and return one without its details."""
    if isinstance(error, REQUEST_ERRORS):
        return error
    log.error("a request failed", exc_info=error)
    return ServerError("decoding this answer failed; other requests are not affected", "decoding_failed")


EngineState = Literal["starting", "ready", "draining", "stopped"]


class Lifecycle(ABC):
    """A base class of engines whose `state` only moves forward through `STATES`, under a lock."""

    STATES: tuple[EngineState, ...] = ("starting", "ready", "draining", "stopped")

    def __init__(self, drain_timeout: float) -> None:
        self.fault: BaseException | None = None  # the error that stopped the engine
        self.state: EngineState = "starting"
        self._drain_timeout, self._drain_deadline = drain_timeout, math.inf
        self._lock = RLock()  # reentrant, because a signal handler may interrupt the thread that holds it

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    async def stop(self, seconds: float | None = None) -> None: ...

    def drain(self, seconds: float | None = None) -> None:
        """Refuse new requests now, and end unfinished ones after `seconds` (default: the drain timeout)."""
        self._drain_deadline = time.monotonic() + (self._drain_timeout if seconds is None else seconds)
        self._enter("draining")

    def _enter(self, state: EngineState) -> None:
        with self._lock:
            self.state = max(self.state, state, key=self.STATES.index)

    def _check_accepting(self) -> None:
        if self.state in ("draining", "stopped"):
            raise ServerError("the server is stopping; use another one, or try again later", "draining")


class ServerEngine(Lifecycle):
    """A model and a decoding thread; the event loop submits requests and reads their event streams."""

    def __init__(
        self,
        model: MaskPredictor,
        settings: ServerSettings = ServerSettings(),
        scheduler: Scheduler = Scheduler(),
        metrics: EngineMetrics | None = None,
    ) -> None:
        if model.tokenizer is None:
            raise CheckpointError("the model has no tokenizer, and answers are text; add tokenizer.json to its folder")
        super().__init__(settings.drain_timeout)
        self.model, self.settings, self.metrics = model, settings, metrics or EngineMetrics()
        self.tokenizer: TextTokenizer = model.tokenizer
        self._worker = DecodeWorker(model, settings, scheduler, self.metrics)
        self._inbox: SimpleQueue[ActiveRequest | LengthProbe] = SimpleQueue()
        self._num_requests = 0
        self._estimated = (-math.inf, 0.0)  # when `_seconds_until_free` was computed, and its value
        self._pass_started, self._longest_pass = math.inf, 0.0  # monotonic clock, and seconds
        self._thread = Thread(target=self._run, name="lastword-engine", daemon=True)

    @property
    def num_unfinished(self) -> int:
        """The number of answers and length probes that are running or waiting."""
        return self._worker.num_unfinished + self._inbox.qsize()

    @property
    def is_stalled(self) -> bool:
        """True if the current pass takes much longer than all earlier ones, and is likely to hang."""
        return time.monotonic() - self._pass_started > max(STALL_SECONDS, STALL_FACTOR * self._longest_pass)

    def load(self) -> EngineLoad:
        """Return the current load, including requests that the thread has not received yet."""
        load = self._worker.load()
        return load._replace(waiting=load.waiting + self._inbox.qsize())

    def start(self) -> None:
        """Start the thread, which warms up the model first."""
        self._thread.start()

    async def stop(self, seconds: float | None = None) -> None:
        """Drain the engine, and wait until its thread has ended."""
        self.drain(seconds)
        await asyncio.to_thread(self._thread.join)

    def submit(self, requests: Sequence[ServerRequest]) -> EventStream:
        """Submit all requests or, if there are too many, none; return the stream of their events."""
        stream, now = EventStream(len(requests)), time.monotonic()
        guess = self.model.default_max_new_tokens // 2
        with self._lock:
            self._check_capacity(len(requests))
            self.metrics.prompt_tokens.inc(sum(map(len, {request.prompt_ids for request in requests})))
            for index, request in enumerate(requests):
                self._num_requests += 1
                active = ActiveRequest(
                    now,
                    predicted_seconds=0.0,
                    reserved_tokens=0,
                    deadline=math.inf if request.timeout is None else now + request.timeout,
                    request_id=self._num_requests,
                    request=request,
                    index=index,
                    stream=stream,
                    detokenizer=IncrementalDetokenizer(self.tokenizer, self.model.ids, request.stop),
                    predicted=PredictedWork(guess, float(guess), min_passes=1),
                )
                self._inbox.put(active)
        return stream

    async def lengths(
        self, prompt_ids: Sequence[int], limit: int, ends: str, interpretation: Interpretation
    ) -> LengthDistribution:
        """Return the length distribution of a validated prompt from one probe, as `lastword.predict_length` does."""
        survival = Survival(limit=limit, ends=ends, interpretation=interpretation)
        deadline = time.monotonic() + self.settings.timeout
        probe = LengthProbe(torch.tensor(prompt_ids), survival, deadline, Future())
        with self._lock:
            self._check_capacity(1)
            self._inbox.put(probe)
        return await asyncio.wrap_future(probe.result)

    def _check_capacity(self, count: int) -> None:
        """Raise SettingError if `count` requests never fit into the queue, ServerError if not at present."""
        self._check_accepting()
        queue_size, unfinished = self.settings.max_queue_size, self.num_unfinished
        room = queue_size + self.settings.max_batch_size
        if count > room:
            raise SettingError(f"{count} answers were requested at once; this server has room for {room}")
        if unfinished + count > queue_size + self._worker.max_batch_size:
            seconds = self._seconds_until_free()
            message = f"{unfinished} requests are unfinished and at most {queue_size} may wait; try again"
            raise ServerError(f"{message} in {seconds:.0f} seconds", "overloaded", retry_after=max(1, round(seconds)))

    def _seconds_until_free(self) -> float:
        """Return the predicted seconds of all unfinished requests, estimated again after ESTIMATE_SECONDS only.

        Thousands of requests may be refused in a second, and an estimate reads every unfinished one.
        """
        now = time.monotonic()
        if now - self._estimated[0] > ESTIMATE_SECONDS:
            self._estimated = (now, self.load().seconds)
        return self._estimated[1]

    def _run(self) -> None:
        """Receive requests and run passes until the engine is drained; this is the thread's function."""
        try:
            started, limit = time.monotonic(), min(WARMUP_SLOTS, self.model.default_max_new_tokens)
            predict_length(self.model, [self.model.ids.end], limit=limit)
            self._longest_pass = time.monotonic() - started
            self._enter("ready")
            while time.monotonic() < self._drain_deadline and (self.state == "ready" or self.num_unfinished):
                self._pass_started = time.monotonic()
                self._receive()
                self._worker.run_pass()
                self._longest_pass = max(self._longest_pass, time.monotonic() - self._pass_started)
        except BaseException as error:
            self.fault = error
            log.exception("the engine stopped")
        finally:
            self._pass_started = math.inf
            self._enter("stopped")  # from now on, `submit` raises an error
            while not self._inbox.empty():
                self._receive()
            self._worker.refuse_all()

    def _receive(self) -> None:
        """Move new requests from the inbox to the `DecodeWorker`; wait up to IDLE_SECONDS if it has none."""
        seconds = 0.0 if self._worker.num_unfinished else IDLE_SECONDS
        with suppress(Empty):
            while True:
                self._worker.add(self._inbox.get(timeout=seconds))
                seconds = 0.0
