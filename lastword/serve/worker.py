"""Worker: what the engine's thread does between two passes and in one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import torch

from lastword.api import build_generation, default_batch_size
from lastword.canvas.tree import tree_map, tree_to
from lastword.decoding.loop import Step
from lastword.decoding.planning import PlannedRequest, plan_lengths
from lastword.decoding.running_batch import CPU, FinishedRow
from lastword.decoding.sampling import RowGenerators
from lastword.errors import LastwordError
from lastword.models.base import MaskPredictor
from lastword.serve.errors import ABOUT_THE_REQUEST, Draining, Expired, Faulty, TooLate
from lastword.serve.job import Answer, Snapshot, Text
from lastword.serve.job import Planned as Announced
from lastword.serve.limits import Limits
from lastword.serve.observer import Observer
from lastword.serve.row import Planned, Row
from lastword.serve.schedule import Pace, Predicted, Schedule, Waiting
from lastword.serve.session import Session
from lastword.serve.volume import Volume, guessed
from lastword.validation import MAX_SLOTS
from lastword.viz.frames import RowTrace, confidences

log = logging.getLogger("lastword.serve")


class Worker:
    """Rows in, answers out. Only the engine's thread comes here; everything else reads numbers.

    Those that came are probed in one batch, the shortest predicted take free slots, and a pass goes to the
    recipe whose rows have had the least time.
    """

    def __init__(self, model: MaskPredictor, limits: Limits, schedule: Schedule, metrics: Observer) -> None:
        self._model, self._limits, self._metrics = model, limits, metrics
        self._schedule = schedule
        self.slots = limits.slots  # rows at once; fewer after the memory was full
        self.pace, self.volume = Pace(), Volume()
        self.rows: dict[int, Row] = {}  # all that are not answered yet, by number
        self._unplanned: list[Row] = []
        self._waiting: list[Waiting[Row]] = []
        self._sessions: list[Session] = []
        self._longest = 1  # tokens of a prompt so far

    def take(self, row: Row) -> None:
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
            said = Draining("the server stopped before the answer was complete; ask again later")
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
    def _at_work(self) -> list[Row]:
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
                self._end(row, "expired", Expired(said))

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

    def _probe(self, rows: list[Row]) -> None:
        began, recipe = time.monotonic(), rows[0].recipe
        plans = plan_lengths(
            self._model,
            recipe,
            [row.prompt for row in rows],
            max_new_tokens=[row.job.most or MAX_SLOTS for row in rows],
        )
        for row, (plan, cost) in zip(rows, plans):
            row.planned = Planned(plan, cost, Predicted.of(recipe, plan))
        self._metrics.probed(len(rows), time.monotonic() - began)

    def _apart(self, rows: list[Row], act: Callable[[list[Row]], None]) -> Iterator[Row]:
        """Rows for which something could be done: together, or else alone; the others are refused."""
        try:
            act(rows)
            yield from rows
        except Exception as error:
            if len(rows) == 1:
                self._end(rows[0], "failed", _refusal(error))
                return
            for row in rows:
                yield from self._apart([row], act)

    def _queue(self, row: Row) -> None:
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
            self._end(row, "refused", TooLate(said))
            return
        row.stream.put(Announced(plan.lengths, plan.max_horizon, row.recipe.max_passes(plan.max_horizon)))
        self._wait(row)

    def _wait(self, row: Row) -> None:
        assert row.planned is not None
        predicted = row.planned.predicted
        columns = len(row.prompt) + predicted.slots
        self._waiting.append(Waiting(row, row.arrived, 0.0, columns))

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

    def _begin(self, row: Row) -> None:
        assert row.planned is not None
        row.session = self._session(row)
        row.began = row.began or time.monotonic()
        dice = RowGenerators([row.job.seed], self._model.device)
        plan, cost, row.columns, row.passes = row.planned.plan, row.planned.probe_cost, 0, 0
        row.session.add(PlannedRequest(row.number, row.prompt, plan, cost, dice))
        if row.job.frames:
            row.trace = RowTrace(self._model.tokenizer, self._model.ids)
            row.stream.put(Snapshot(row.trace.begin([self._model.ids.mask] * plan.max_horizon)))

    def _session(self, row: Row) -> Session:
        """The newest of its recipe that has room for it, or a new one, with room for any prompt so far."""
        for session in reversed(self._sessions):
            if not row.alone and session.holds(row.recipe, len(row.prompt)):
                return session
        self._longest = max(self._longest, len(row.prompt))
        slots = 1 if row.alone else self.slots
        session = Session(
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

    def _begin_anew(self, session: Session, rows: list[Row], error: Exception) -> None:
        """A pass failed: each of its rows begins anew alone, and the one that fails again is refused.

        A row that begins anew writes what it wrote before, so what went out stays true. Where memory was
        short, fewer rows share a pass from now on instead.
        """
        self._sessions.remove(session)
        short = is_memory(error)
        if short and len(rows) > 1:
            self.slots = min(self.slots, max(1, len(rows) // 2))
            log.warning("memory was short: %d rows at once from now on", self.slots)
        for row in rows:
            row.session, row.reserved = None, 0
            if len(rows) == 1 and (row.alone or not short):
                self._end(row, "failed", _refusal(error))
                continue
            row.alone = row.alone or not short or len(rows) == 1
            self._wait(row)

    def _count(self, step: Step, rows: list[Row], seconds: float) -> None:
        """Columns of this pass: those of its rows, and with the padding of shorter ones."""
        spent = dict(zip(step.request_ids, step.cost.tokens_computed.tolist()))
        horizon = dict(zip(step.request_ids, step.canvas.horizon.tolist()))
        columns = sum(spent[row.number] - row.columns for row in rows)
        padded = columns
        if not step.recipe.cache.traits.keeps:
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
                    finished = _as_it_stands(step, slot)
                if finished is not None:
                    self._answer(row, finished)
            except Exception as error:  # a tokenizer is others' code
                self._end(row, "failed", _refusal(error))
                continue
            if finished is None and len(row.prompt) + horizon > row.reserved:
                row.reserved = len(row.prompt) + horizon
                self._metrics.outgrown()

    def _tell(self, row: Row, step: Step, slot: int, answer: list[int], *, complete: bool) -> None:
        """What of this step the reader hears."""
        more = row.committed.read(answer, complete=complete)
        if row.trace is not None and (cost := step.cost.row(slot)).forward_passes > row.trace.passes:
            sure = confidences(step, slot)
            frame = row.trace.after(answer, sure, cost.tokens_computed, forward_passes=cost.forward_passes)
            row.stream.put(Snapshot(frame))
        if more:
            row.told = row.told or time.monotonic()
            row.stream.put(Text(more))

    def _answer(self, row: Row, done: FinishedRow) -> None:
        assert row.planned is not None
        assert row.began is not None
        now, stopped, predicted = time.monotonic(), row.committed.stopped, row.planned.predicted
        generation = build_generation(self._model, done, row.recipe, row.prompt.tolist(), now - row.arrived)
        answer = Answer(
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
            self.volume.learn(row.recipe, guessed(predicted.tokens, width), done.cost.tokens_computed)
        first_text = None if row.told is None else row.told - row.arrived
        self._metrics.answered(answer, predicted, first_text)
        row.stream.put(answer)
        self._end(row, "answered")

    def _end(self, row: Row, how: str, error: LastwordError | None = None) -> None:
        """Forget a row, whatever it has come to."""
        if row.session is not None:
            row.session.drop(row.number)
        self._unplanned = [own for own in self._unplanned if own is not row]
        self._waiting = [own for own in self._waiting if own.job is not row]
        del self.rows[row.number]
        self._metrics.ended(how)
        if error is not None:
            row.stream.put(error)


def _as_it_stands(step: Step, slot: int) -> FinishedRow:
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


def _refusal(error: Exception) -> LastwordError:
    """What to say of a job that failed: what is wrong with its request, or else the kind of the error."""
    if isinstance(error, ABOUT_THE_REQUEST):
        return error
    log.error("a job failed", exc_info=error)
    said = str(error) if isinstance(error, LastwordError) else type(error).__name__
    return Faulty(f"decoding this answer failed: {said}")


def is_memory(error: Exception) -> bool:
    """Was there no memory left?"""
    short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return short or "allocate memory" in str(error)
