"""Working: portion by portion, prompts go to the engine and lines to the file of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lastword.batch.answered import Answering, Key, reason_of
from lastword.batch.answers import Answers
from lastword.batch.asked import Asked, Asking, Refused
from lastword.batch.estimate import PROBED, RemainingTime, estimated_work, predicted_work
from lastword.batch.outcome import BatchProgress
from lastword.batch.source import Source
from lastword.engines.base import Engine, GenerationReply, GenerationRequest, LengthPredictor
from lastword.errors import SettingError
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS

PORTION = 4096  # prompts that are read, tokenised and asked at once; an engine orders them as it likes
PORTION_TOKENS = 2**23  # and how many tokens they have, about
MOST_FAILED = 32  # in a row with no answer between: then it is hardly the prompts' fault

Questions = dict[Recipe, dict[Key, GenerationRequest]]


@dataclass
class Working:
    """A run under way."""

    source: Source
    total: int  # lines of the source that are asked
    engine: Engine
    rows: int
    asking: Asking
    answering: Answering
    answers: Answers
    progress: Callable[[BatchProgress], None]
    tokens: int = 0
    done: int = 0  # of the total
    failed: int = 0
    _here: dict[int, tuple[Asked, dict[int, GenerationReply[Key]]]] = field(default_factory=dict)
    _held: list[tuple[int, bytes, bool]] = field(default_factory=list)  # failed, and not yet written

    def through(self) -> float:
        """Answer whoever waits; the seconds it took."""
        self.done = sum(index < self.total for index in self.answers.done)
        self.failed = sum(index < self.total for index in self.answers.failed)
        waiting = self.total - self.done
        self.estimate = RemainingTime(waiting, self._predicted(waiting))
        self._tell()
        for portion in self._portions():
            self._refuse([line for line in portion if isinstance(line, Refused)])
            asked = [line for line in portion if isinstance(line, Asked)]
            self._here = {line.index: (line, {}) for line in asked}
            for recipe, questions in by_recipe(asked).items():
                for replies in self.engine.generate(questions, recipe, max_batch_size=self.rows):
                    self._take(replies)
        self._write()
        return self.estimate.seconds if waiting else 0.0

    def _waiting(self) -> Iterator[Asked | Refused]:
        for given in self.source:
            if given.index >= self.total:
                return
            if given.index not in self.answers.done:
                yield self.asking(given)

    def _portions(self) -> Iterator[list[Asked | Refused]]:
        portion: list[Asked | Refused] = []
        tokens = 0
        for line in self._waiting():
            portion.append(line)
            tokens += sum(len(job.prompt) for job in line.jobs) if isinstance(line, Asked) else 0
            if len(portion) == PORTION or tokens > PORTION_TOKENS:
                yield portion
                portion, tokens = [], 0
        yield portion

    def _predicted(self, waiting: int) -> dict[int, float]:
        """What some of those who wait, evenly spread, are predicted to take, where the engine can say."""
        if not isinstance(self.engine, LengthPredictor) or not waiting:
            return {}
        chosen = {turn * waiting // PROBED for turn in range(PROBED)}
        at, sample = -1, list[Asked]()
        for given in self.source:
            if given.index >= self.total or len(sample) == len(chosen):
                break
            if given.index in self.answers.done:
                continue
            at += 1
            if at in chosen and isinstance(line := self.asking(given), Asked):
                sample.append(line)
        found: dict[int, float] = {}
        for recipe, questions in by_recipe(sample).items():
            for some in self.engine.predict_lengths(questions, recipe, max_batch_size=PROBED):
                for key, slots in some.items():
                    own = estimated_work(recipe, len(questions[key].prompt_ids), float(slots))
                    found[key[0]] = found.get(key[0], 0.0) + own
        return found

    def _refuse(self, lines: list[Refused]) -> None:
        for line in lines:
            self._held.append((line.index, self.answering.refused(line), True))
            self.estimate.skip(line.index)
        self._write()

    def _take(self, replies: list[GenerationReply[Key]]) -> None:
        """Write the lines that these replies complete; failures wait for an answer to go with them."""
        lines = []
        any_answer = False
        for reply in replies:
            index, choice = reply.key
            line, parts = self._here[index]
            parts[choice] = reply
            if len(parts) < len(line.jobs):
                continue
            del self._here[index]
            whole = [parts[at] for at in range(len(parts))]
            written, failed, tokens = self.answering.answered(line, whole)
            lines.append((index, written, failed))
            self.tokens += tokens
            self.estimate.finish(index, predicted_by(line, whole))
            any_answer |= all(part.error is None for part in whole)
        self._held += lines
        if any_answer:
            self._write()
        elif len(self._held) >= MOST_FAILED:
            wrong = next(reason for reply in replies if (reason := reason_of(reply)))
            raise SettingError(
                f"{len(self._held)} prompts in a row failed, the last one with: {wrong}. That is hardly the "
                "fault of each, so they were not written down; what was written before is kept: mend the "
                "cause and give the same command again"
            )

    def _write(self) -> None:
        """What is held goes to the file, for good."""
        self.answers.append(self._held)
        self.done += len(self._held)
        self.failed += sum(failed for _, _, failed in self._held)
        self._held = []
        self._tell()

    def _tell(self) -> None:
        now = self.estimate
        self.progress(BatchProgress(self.done, self.total, self.failed, now.seconds, now.seconds_left))


def predicted_by(line: Asked, replies: list[GenerationReply[Key]]) -> float | None:
    """The work that was predicted of a line, as its replies say; None: one of them does not."""
    found = 0.0
    for job, reply in zip(line.jobs, replies):
        own = predicted_work(job.recipe, reply.details)
        if own is None:
            return None
        found += own
    return found


def by_recipe(lines: list[Asked]) -> Questions:
    """The questions of lines, those of one recipe together."""
    found: Questions = {}
    for line in lines:
        for choice, job in enumerate(line.jobs):
            most = None if job.most is None else min(job.most, MAX_SLOTS)
            said = line.said[choice] if line.said else None
            question = GenerationRequest(list(job.prompt), job.seed, most, said)
            found.setdefault(job.recipe, {})[line.index, choice] = question
    return found
