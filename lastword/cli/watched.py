"""An engine that tells how far it is, by the lengths that are predicted of its questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from lastword.batch.estimate import PROBED, Estimate, predicted_work, work
from lastword.decoding.loop import Step
from lastword.engines.engine import Engine, Facts, Key, Predicts, Question, Reply
from lastword.engines.local import Local
from lastword.models.base import MaskPredictor
from lastword.recipe.recipe import Recipe

ONE_OF = 8  # questions is probed beforehand, so that an estimate costs little where answers are short

Tell = Callable[[int, "float | None"], None]


class Watched:
    """Another engine, of which `tell` hears how many questions wait and how many seconds they will take."""

    def __init__(self, engine: Engine, tell: Tell) -> None:
        self._engine, self._tell = engine, tell
        if isinstance(engine, Predicts):
            self.predict = engine.predict

    @property
    def model(self) -> MaskPredictor:
        """The engine's."""
        return self._engine.model

    def ask(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[list[Reply[Key]]]:
        """As the engine does; of this process's own, every answer is heard of as it ends."""
        waiting: dict[Any, int] = {key: at for at, key in enumerate(questions)}
        self._tell(len(waiting), None)
        slots = self._predicted(questions, recipe, rows)
        expected = sum(slots.values()) / len(slots) * len(waiting) if slots else 0.0
        known = {
            at: work(recipe, len(question.prompt), slots[at])
            for at, question in enumerate(questions.values())
            if at in slots
        }
        estimate = Estimate(len(waiting), known)
        written = 0

        def stepped(step: Step) -> None:
            """Until a first answer is there, what is written of several counts."""
            nonlocal written
            written += int(step.chosen.sum())
            if written and len(waiting) == len(questions) and expected > written:
                left = (expected - written) * estimate.seconds / written
                self._tell(len(waiting), left)

        def took(key: Hashable, facts: Facts) -> None:
            if (at := waiting.pop(key, None)) is not None:
                estimate.took(at, predicted_work(recipe, facts))
                self._tell(len(waiting), estimate.left)

        if isinstance(self._engine, Local):
            self._engine.heard, self._engine.stepped = took, stepped
        try:
            for replies in self._engine.ask(questions, recipe, rows=rows):
                for reply in replies:
                    took(reply.key, reply.facts)
                yield replies
        finally:
            if isinstance(self._engine, Local):
                self._engine.heard = self._engine.stepped = None

    def _predicted(self, questions: Mapping[Any, Question], recipe: Recipe, rows: int) -> dict[int, float]:
        """The slots of some questions, evenly spread. Other engines tell them with their replies."""
        if not isinstance(self._engine, Local):
            return {}
        keys = list(questions)
        step = max(ONE_OF, -(-len(keys) // PROBED))
        some = {at: questions[keys[at]] for at in range(0, len(keys), step)}
        return {
            at: float(slots)
            for found in self._engine.predict(some, recipe, rows=rows)
            for at, slots in found.items()
        }

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()
