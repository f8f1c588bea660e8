"""Local: this process answers, batches of like length; what does not fit the model, or fails, apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from lastword.api import Generation, generate_ids
from lastword.canvas.canvas import validate_prompts
from lastword.canvas.cost import TokenCost
from lastword.decoding.loop import Step
from lastword.decoding.planning import plan_lengths
from lastword.engines.engine import FAILED, TOO_LONG, Facts, Key, Question, Reply
from lastword.engines.room import within_room
from lastword.engines.surroundings import surroundings
from lastword.errors import ExtraError, LastwordError, RecipeError, SettingError
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS

TRIES = 2  # of a question alone, before it is given up
MOST_LETTERS = 1_000  # of an error
# What is wrong with every question alike: the run is refused, and no question is to blame.
ABOUT_THE_RUN = (ExtraError, RecipeError, SettingError)
QUEUED = 4  # times the rows that are decoded at once make a batch: what a run that is killed loses at most


class Local:
    """An engine of this process around a model that was loaded."""

    def __init__(self, model: MaskPredictor) -> None:
        self._model = model
        # Who listens: to every answer as it ends, by its key, and on a CPU to every step.
        self.heard: Callable[[Any, Facts], None] | None = None
        self.stepped: Callable[[Step], None] | None = None

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
        rule of `room`. Where decoding a batch fails, its halves are decoded, and so on down to the question
        that is at fault, which is given up after TRIES alone.
        """
        order = sorted(questions, key=lambda key: len(questions[key].prompt))
        recipes = {key: within_room(recipe, self.model, len(questions[key].prompt)) for key in questions}
        for fit, group in groupby(order, key=lambda key: recipes[key]):
            keys = list(group)
            if fit is None:
                yield [
                    Reply(key, "", _unasked(len(questions[key].prompt)) | surroundings(self.model))
                    for key in keys
                ]
                continue
            for first in range(0, len(keys), rows * QUEUED):
                batch = {key: questions[key] for key in keys[first : first + rows * QUEUED]}
                yield self._answered(batch, fit, rows, {"shortened": fit != recipe})

    def predict(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[dict[Key, int]]:
        """How many slots each question is planned to take, some at a time, before any is asked.

        What does not fit the model or cannot be planned is left out: to ask it says why.
        """
        order = sorted(questions, key=lambda key: len(questions[key].prompt))
        for first in range(0, len(order), rows):
            some = {key: questions[key] for key in order[first : first + rows]}
            yield {key: plan.max_horizon for key, (plan, _) in self.plans(some, recipe).items()}

    def plans(self, questions: Mapping[Key, Question], recipe: Recipe) -> dict[Key, tuple[Plan, TokenCost]]:
        """The plans that decoding would begin with, and what their probes cost; a question may bring its own.

        All are probed together. What does not fit the model or cannot be planned has none.
        """
        found: dict[Key, tuple[Plan, TokenCost]] = {}
        order = sorted(questions, key=lambda key: len(questions[key].prompt))
        fits = {key: within_room(recipe, self.model, len(questions[key].prompt)) for key in order}
        for fit, group in groupby(order, key=lambda key: fits[key]):
            keys = list(group)
            if fit is not None:
                found |= self._planned({key: questions[key] for key in keys}, fit)
        return found

    def _planned(self, batch: Mapping[Key, Question], recipe: Recipe) -> dict[Key, tuple[Plan, TokenCost]]:
        """The plans of one batch; none where it fails."""
        try:
            prompts = validate_prompts([own.prompt for own in batch.values()], self.model.ids)
            most = [own.most or MAX_SLOTS for own in batch.values()]
            bounds = most if any(own.most for own in batch.values()) else None
            return dict(zip(batch, plan_lengths(self.model, recipe, prompts, max_new_tokens=bounds)))
        except ABOUT_THE_RUN:
            raise
        except Exception:  # one of them is at fault, and the others are not worth a pass each
            return {}

    def _answered(
        self, batch: Mapping[Key, Question], recipe: Recipe, rows: int, more: Facts
    ) -> list[Reply[Key]]:
        """Replies to questions decoded together; where that fails, in halves, down to the culprit."""
        keys, asked = list(batch), list(batch.values())
        tries = 1 if len(batch) > 1 else TRIES
        reason = ""
        for _ in range(tries):
            try:
                found = generate_ids(
                    self.model,
                    [own.prompt for own in asked],
                    recipe,
                    [own.seed for own in asked],
                    max_batch_size=rows,
                    max_new_tokens=[own.most for own in asked],
                    plans=[own.planned for own in asked],
                    on_step=self.stepped if self.model.device.type == "cpu" else None,
                    on_answer=lambda row, answer: self._hear(keys[row], answer),
                )
            except ABOUT_THE_RUN:
                raise
            except Exception as wrong:  # a part, a model or a tokenizer may be anybody's
                reason = failure(wrong)
            else:
                shared = {
                    "rows": len(batch),
                    "batch_seconds": round(max(answer.seconds for answer in found), 6),
                } | surroundings(self.model)
                return [
                    Reply(key, answer.text or "", _facts(answer) | shared | more)
                    for key, answer in zip(batch, found)
                ]
        if len(keys) == 1:
            facts = _unasked(len(asked[0].prompt)) | more | {"finish": FAILED}
            return [Reply(keys[0], "", facts, f"{reason} (tried {TRIES} times alone)")]
        half = (len(keys) + 1) // 2
        return [
            reply
            for some in (keys[:half], keys[half:])
            for reply in self._answered({key: batch[key] for key in some}, recipe, rows, more)
        ]

    def _hear(self, key: Any, answer: Generation) -> None:
        if self.heard is not None:
            self.heard(key, _facts(answer))

    def close(self) -> None:
        """The model is the caller's."""


def failure(wrong: Exception) -> str:
    """An error as a reply tells it, on one line."""
    said = " ".join(str(wrong).split())[:MOST_LETTERS]
    return said if isinstance(wrong, LastwordError) else f"{type(wrong).__name__}: {said}"


def _facts(answer: Generation) -> Facts:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens", "recipe")} | {
        "probe_cost": answer.probe_cost,
        "cost": answer.cost,
        "length": len(answer.tokens),
    }


def _unasked(prompt: int) -> Facts:
    """Of a question that does not fit: no answer and no work."""
    nothing = TokenCost(0, 0, 0)
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
