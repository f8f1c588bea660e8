"""Local: this process answers, batches of like length; what does not fit the model apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from lastword.canvas.cost import Work
from lastword.engines.engine import TOO_LONG, Facts, Key, Question, Reply
from lastword.engines.room import within_room
from lastword.engines.surroundings import surroundings
from lastword.generation import Generation, generate
from lastword.models.predictor import MaskPredictor
from lastword.recipe.recipe import Recipe

QUEUED = 4  # times the rows that are decoded at once make a batch: what a run that is killed loses at most


class Local:
    """An engine of this process around a model that was loaded."""

    def __init__(self, model: MaskPredictor) -> None:
        self._model = model

    @property
    def model(self) -> MaskPredictor:
        """The one that was given."""
        return self._model

    def ask(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[list[Reply[Key]]]:
        """Replies batch by batch, shortest prompts first.

        `rows` are decoded at once, and a few times as many make a batch: a question that waits takes the
        slot of a row that is done. A question whose canvas does not fit the model's positions follows the
        rule of `room`.
        """
        order = sorted(questions, key=lambda key: len(questions[key].prompt))
        recipes = {
            key: within_room(recipe, self.model, len(questions[key].prompt)) for key in questions
        }
        for fit, group in groupby(order, key=lambda key: recipes[key]):
            keys = list(group)
            if fit is None:
                yield [
                    Reply(key, "", _unasked(len(questions[key].prompt)) | surroundings(self.model))
                    for key in keys
                ]
                continue
            for first in range(0, len(keys), rows * QUEUED):
                batch = keys[first : first + rows * QUEUED]
                answers = generate(
                    self.model,
                    [questions[key].prompt for key in batch],
                    recipe=fit,
                    seed=[questions[key].seed for key in batch],
                    slots=rows,
                )
                shared = {
                    "rows": len(batch),
                    "batch_seconds": round(max(answer.seconds for answer in answers), 6),
                    "shortened": fit != recipe,
                } | surroundings(self.model)
                yield [
                    Reply(key, answer.text or "", _facts(answer) | shared)
                    for key, answer in zip(batch, answers)
                ]

    def close(self) -> None:
        """The model is the caller's."""


def _facts(answer: Generation) -> Facts:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens", "recipe")} | {
        "probe_cost": answer.probe_cost,
        "cost": answer.cost,
        "length": len(answer.tokens),
    }


def _unasked(prompt: int) -> Facts:
    """Of a question that does not fit: no answer and no work."""
    nothing = Work(0, 0, 0)
    return {
        "prompt_tokens": prompt,
        "horizon": 0,
        "expected_length": None,
        "tail": None,
        "probe_cost": nothing,
        "cost": nothing,
        "seconds": 0.0,
        "finish": TOO_LONG,
        "length": 0,
        "rows": 1,
        "batch_seconds": 0.0,
        "shortened": False,
    }
