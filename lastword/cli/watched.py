"""An engine that tells how far it is, by the lengths that are predicted of its questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from lastword.batch.progress import MAX_PROBES, RemainingTime, estimated_work, predicted_work
from lastword.decoding.loop import Step
from lastword.engines.base import (
    Engine,
    GenerationReply,
    GenerationRequest,
    Key,
    LengthPredictor,
    ModelInfo,
    RemoteModelInfo,
    ReplyDetails,
)
from lastword.engines.local import LocalEngine
from lastword.recipe.recipe import Recipe

ONE_OF = 8  # questions is probed beforehand, so that an estimate costs little where answers are short

Tell = Callable[[int, "float | None"], None]


class Watched:
    """Another engine, of which `tell` hears how many questions wait and how many seconds they will take."""

    def __init__(self, engine: Engine, tell: Tell) -> None:
        self._engine, self._tell = engine, tell
        if isinstance(engine, LengthPredictor):
            self.predict_lengths = engine.predict_lengths

    @property
    def model_info(self) -> ModelInfo | RemoteModelInfo:
        """The engine's."""
        return self._engine.model_info

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """As the engine does; of this process's own, every answer is heard of as it ends."""
        waiting: dict[Any, int] = {key: at for at, key in enumerate(requests)}
        self._tell(len(waiting), None)
        slots = self._predicted(requests, recipe, max_batch_size)
        expected = sum(slots.values()) / len(slots) * len(waiting) if slots else 0.0
        known = {
            at: estimated_work(recipe, len(question.prompt_ids), slots[at])
            for at, question in enumerate(requests.values())
            if at in slots
        }
        estimate = RemainingTime(len(waiting), known)
        written = 0

        def stepped(step: Step) -> None:
            """Until a first answer is there, what is written of several counts."""
            nonlocal written
            written += int(step.chosen.sum())
            if written and len(waiting) == len(requests) and expected > written:
                left = (expected - written) * estimate.seconds / written
                self._tell(len(waiting), left)

        def took(key: Hashable, facts: ReplyDetails) -> None:
            if (at := waiting.pop(key, None)) is not None:
                estimate.finish(at, predicted_work(recipe, facts))
                self._tell(len(waiting), estimate.seconds_left)

        if isinstance(self._engine, LocalEngine):
            self._engine.on_reply, self._engine.on_step = took, stepped
        try:
            for replies in self._engine.generate(requests, recipe, max_batch_size=max_batch_size):
                for reply in replies:
                    took(reply.key, reply.details)
                yield replies
        finally:
            if isinstance(self._engine, LocalEngine):
                self._engine.on_reply = self._engine.on_step = None

    def _predicted(
        self, questions: Mapping[Any, GenerationRequest], recipe: Recipe, rows: int
    ) -> dict[int, float]:
        """The slots of some questions, evenly spread. Other engines tell them with their replies."""
        if not isinstance(self._engine, LocalEngine):
            return {}
        keys = list(questions)
        step = max(ONE_OF, -(-len(keys) // MAX_PROBES))
        some = {at: questions[keys[at]] for at in range(0, len(keys), step)}
        return {
            at: float(slots)
            for found in self._engine.predict_lengths(some, recipe, max_batch_size=rows)
            for at, slots in found.items()
        }

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()
