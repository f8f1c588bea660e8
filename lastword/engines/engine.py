"""Engine: who answers many prompts with one recipe, wherever the model is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from lastword.canvas.cost import TokenCost
from lastword.errors import WrongTypeError
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.validation import short_repr

TOO_LONG = "too_long"  # how an answer finished that was not asked: the prompt left no room
FAILED = "failed"  # and one that never came

Key = TypeVar("Key")
Facts = dict[str, Any]  # how an answer came, as plain data and `Work`


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, the seed of its row, and the slots its answer may have at most."""

    prompt: list[int]
    seed: int
    most: int | None = None  # None: as many as the recipe says
    said: str | tuple[dict[str, str], ...] | None = None  # the same, for who reads text or messages
    # What decoding by this recipe begins with, where it was made before.
    planned: tuple[Plan, TokenCost] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Reply(Generic[Key]):
    """The text that came, whole, and how it came; or why none came, after every try."""

    key: Key
    text: str
    facts: Facts
    failed: str | None = None


@runtime_checkable
class Engine(Protocol):
    """Answers questions; a key comes back exactly once, with an answer or a failure of its own.

    What was answered is handed over as soon as it is there, some at a time and in any order, so that a
    caller can write it down. An answer depends on question and recipe alone, not on who gave it. One caller
    asks at a time.
    """

    @property
    def model(self) -> MaskPredictor:
        """The model that answers, or what is known of it here (`Elsewhere`)."""
        ...

    def ask(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[list[Reply[Key]]]:
        """Replies to all questions; a worker decodes `rows` of them at once."""
        ...

    def close(self) -> None:
        """Give back what the engine holds: processes, connections."""


@runtime_checkable
class Predicts(Protocol):
    """An engine that can say how long answers will be before it is asked for any."""

    def predict(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[dict[Key, int]]:
        """Slots that answers are planned to take, by key, some at a time; of some questions nobody knows."""


def check_engine(owner: str, engine: object) -> None:
    """Refuse what is no engine. Its model is not looked at: that may start workers."""
    lacking = [name for name in ("ask", "close") if not callable(getattr(engine, name, None))]
    if lacking or isinstance(engine, type):
        raise WrongTypeError(
            f"{owner}(engine={short_repr(engine)}) was given; engine must be one, such as "
            "lastword.engines.Local(model) or Pool(Processes(Source(name), workers=2))"
        )
