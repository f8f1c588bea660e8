"""Worker: what runs in every place of a pool. It loads the model once, predicts lengths and answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from lastword.engines.elsewhere import Elsewhere
from lastword.engines.engine import Question, Reply
from lastword.engines.local import Local
from lastword.engines.places import Job, Result
from lastword.engines.room import within_room
from lastword.generation import predict_length
from lastword.length.wrapper import traits_of
from lastword.models.load import load
from lastword.models.predictor import MaskPredictor
from lastword.recipe.recipe import Recipe

MOST_REASON = 1_000  # letters of why a question failed


@dataclass(frozen=True)
class Source:
    """Which model workers load, and how: what `lastword.load` takes.

    A folder is found where the worker is, under the same path as here.
    """

    name: str
    device: str = "auto"
    dtype: str = "auto"
    calibration: str | None = "auto"

    def load(self) -> MaskPredictor:
        """The model, here."""
        return load(self.name, device=self.device, dtype=self.dtype, calibration=self.calibration)


class Worker:
    """A model and what a pool asks of it. What one question raises fails that question alone."""

    def __init__(self, source: Source, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = source.load()
        self._local = Local(self.model)

    def about(self) -> Elsewhere:
        """What the pool needs to know of the model."""
        return Elsewhere.of(self.model)

    def run(self, job: Job) -> Result:
        """A job's result."""
        if job.kind == "predict":
            return self.predict(job.questions, job.recipe)
        return self.answer(job.questions, job.recipe, job.rows)

    def predict(self, questions: tuple[Question, ...], recipe: Recipe) -> list[float]:
        """Slots that each answer is expected to need, from one pass.

        0 for a question that will not be asked. One whose probe raises is unknown, and told as endless: it is
        asked first.
        """
        found = [0.0] * len(questions)
        by_limit: dict[int, list[int]] = {}
        for at, question in enumerate(questions):
            fit = within_room(recipe, self.model, len(question.prompt))
            if fit is not None:
                by_limit.setdefault(traits_of(fit.length).most, []).append(at)
        for limit, places in by_limit.items():
            try:
                asked = [questions[at].prompt for at in places]
                means = predict_length(self.model, asked, limit=limit).mean.tolist()
            except Exception:  # whatever it is: answering meets it again, and says of whom
                means = [math.inf] * len(places)
            for at, mean in zip(places, means):
                found[at] = mean
        return found

    def answer(
        self, questions: tuple[Question, ...], recipe: Recipe, rows: int
    ) -> list[Reply[int]]:
        """A reply to each question, by its place; where the batch raises, each is asked alone."""
        asked = dict(enumerate(questions))
        try:
            return _in_order(self._local.ask(asked, recipe, rows=rows))
        except Exception as raised:  # a model may raise anything, and the others want their answers
            if len(asked) == 1:
                return [Reply(0, "", {}, failed=_reason(raised))]
        alone = [self.answer((question,), recipe, rows)[0] for question in questions]
        return [replace(reply, key=at) for at, reply in enumerate(alone)]


def _in_order(batches: object) -> list[Reply[int]]:
    found = [reply for batch in batches for reply in batch]  # type: ignore[attr-defined]
    return sorted(found, key=lambda reply: reply.key)


def _reason(raised: Exception) -> str:
    """In one line, whatever it was."""
    return " ".join(f"{type(raised).__name__}: {raised}".split())[:MOST_REASON]
