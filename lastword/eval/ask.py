"""Ask a model many prompts with one recipe: batches of like length, and what does not fit apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from lastword.eval.records import NOTHING, TOO_LONG, Fields, Spent
from lastword.eval.room import within_room
from lastword.generation import Generation, generate
from lastword.models.predictor import MaskPredictor
from lastword.recipe.recipe import Recipe

QUEUED = 4  # times the rows that are decoded at once make a batch: what a run that is killed loses at most

Key = TypeVar("Key")


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and the seed of its row."""

    prompt: list[int]
    seed: int


@dataclass(frozen=True)
class Reply(Generic[Key]):
    """The text that came, whole, and what a record says of how it came."""

    key: Key
    text: str
    facts: Fields


def ask(
    model: MaskPredictor, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
) -> Iterator[list[Reply[Key]]]:
    """Replies batch by batch, shortest prompts first; every question gets exactly one.

    `rows` are decoded at once, and a few times as many make a batch: a question that waits takes the slot of
    a row that is done.

    A question whose canvas does not fit the model's positions follows the rule of `room`.
    """
    order = sorted(questions, key=lambda key: len(questions[key].prompt))
    recipes = {key: within_room(recipe, model, len(questions[key].prompt)) for key in questions}
    for fit, group in groupby(order, key=lambda key: recipes[key]):
        keys = list(group)
        if fit is None:
            yield [Reply(key, "", _unasked(len(questions[key].prompt))) for key in keys]
            continue
        for first in range(0, len(keys), rows * QUEUED):
            batch = keys[first : first + rows * QUEUED]
            answers = generate(
                model,
                [questions[key].prompt for key in batch],
                recipe=fit,
                seed=[questions[key].seed for key in batch],
                slots=rows,
            )
            shared = {
                "rows": len(batch),
                "batch_seconds": round(max(answer.seconds for answer in answers), 6),
                "shortened": fit != recipe,
            }
            yield [
                Reply(key, answer.text or "", _facts(answer) | shared)
                for key, answer in zip(batch, answers)
            ]


def _facts(answer: Generation) -> Fields:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens", "recipe")} | {
        "probe_cost": Spent(**answer.probe_cost._asdict()),
        "cost": Spent(**answer.cost._asdict()),
        "length": len(answer.tokens),
    }


def _unasked(prompt: int) -> Fields:
    """What a record says of a sample that does not fit: no answer and no work."""
    return {
        "prompt_tokens": prompt,
        "horizon": 0,
        "expected_length": None,
        "tail": None,
        "probe_cost": NOTHING,
        "cost": NOTHING,
        "seconds": 0.0,
        "finish": TOO_LONG,
        "length": 0,
        "rows": 1,
        "batch_seconds": 0.0,
        "shortened": False,
    }
