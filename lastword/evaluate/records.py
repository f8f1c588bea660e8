"""Record: what is kept of one sample. One schema for journals, archives, tables and benchmarks.

An `Answer` says how a prompt was answered and what that cost; a `Drift` how the expected length moved while
it was written. Whatever comes from a file is checked here: types, bounds, finite numbers, nesting. What was
checked is a plain frozen value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from lastword.errors import LastwordError, SettingError
from lastword.io.schema import STRICT, Count, LongText, Seed, Share, SlotCount, Text, error_reason
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import REREGISTERED
from lastword.validation import MAX_SLOTS

Fields = dict[str, Any]  # some of a record's, before it is one
FinishName = Literal["ended", "truncated", "masks_left", "too_long"]
COSTS = ("cost", "probe_cost")
FINISHES: tuple[FinishName, ...] = get_args(FinishName)

RowCount = Annotated[int, Field(ge=1, le=10**6)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]
Expected = Annotated[float, Field(ge=0, le=MAX_SLOTS)]
StepKey = Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]  # a key of a JSON object is text
Sandbox = dict[Text, Count | Seconds | Text]


@lru_cache(maxsize=4096)
def _parsed(text: str, replaced: int) -> Recipe:
    """Read again once a name means another class."""
    return Recipe.from_json(text)


def _recipe(value: object) -> Recipe:
    """A recipe from its JSON; records of one recipe share one value."""
    if isinstance(value, Recipe):
        return value
    if not isinstance(value, dict):
        raise ValueError("a recipe is a JSON object")
    try:
        return _parsed(json.dumps(value), len(REREGISTERED))
    except (LastwordError, TypeError, RecursionError, OverflowError) as wrong:
        raise ValueError(str(wrong)[:400]) from wrong  # it may quote all it was given


@lru_cache(maxsize=4096)
def recipe_data(recipe: Recipe) -> Fields:
    """A recipe as JSON data."""
    return json.loads(recipe.to_json())


def _from_the_first(expected: dict[str, float]) -> dict[str, float]:
    if "0" not in expected:
        raise ValueError("later steps are compared with step 0, which is missing")
    return expected


RecipeField = Annotated[Recipe, PlainValidator(_recipe), PlainSerializer(recipe_data)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Spent:
    """What a row cost: passes, columns they computed, columns times those each attended to."""

    # Records written before 0.2 have the old names.
    forward_passes: Count = Field(validation_alias=AliasChoices("forward_passes", "passes"))
    tokens_computed: Count = Field(validation_alias=AliasChoices("tokens_computed", "columns"))
    attention_pairs: Count | None = Field(
        None, validation_alias=AliasChoices("attention_pairs", "squares")
    )  # an archive leaves them out


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Asked:
    """Which sample was asked of which model and how: what every record begins with."""

    model: Text
    weights: Text  # a fingerprint: other weights under the same name are another model
    recipe: RecipeField
    seed: Seed
    task: Text
    group: Text  # the benchmark the task belongs to
    task_version: Text
    split: Text
    index: Count  # of the sample in its task
    prompt: Text | None = None  # a digest; an archive has one for all prompts of a task
    layout: Text
    hardware: Text
    dtype: Text
    versions: dict[Text, Text]
    sandbox: Sandbox | None = None  # how code that was run was kept in


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Answer(Asked):
    """A decoded answer, its score and its cost."""

    kind: Literal["answer"] = "answer"
    prompt_tokens: Count
    horizon: SlotCount  # slots planned, 0 if it was not asked
    expected_length: Expected | None = None  # what a probe said, if the policy read one
    tail: Share | None = None
    probe_cost: Spent | None  # None: a server told `cost` with the probe in it, or nothing
    cost: Spent | None  # without the probe; None: nobody counted
    seconds: Seconds | None = None  # until this row was done
    finish: FinishName
    length: SlotCount | None = None  # of the answer in tokens, its end token left out
    rows: RowCount  # in the batch
    batch_seconds: Seconds | None  # None where something else ran on the machine
    shortened: bool = False  # asked on a canvas cut to what the prompt left
    refused: bool = False  # code that was not run: more than plain Python, and no sandbox
    text: LongText | None = None
    score: Share

    @property
    def forward_passes(self) -> int:
        """Forward passes, the probe included; 0 where nobody counted."""
        return sum(part.forward_passes for part in (self.cost, self.probe_cost) if part is not None)

    @property
    def tokens_computed(self) -> int:
        """Columns computed, the probe included; 0 where nobody counted."""
        return sum(part.tokens_computed for part in (self.cost, self.probe_cost) if part is not None)

    @property
    def right(self) -> bool:
        return self.score > 0.5


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Drift(Asked):
    """The expected length by step of one decoding, step 0 among them."""

    kind: Literal["drift"]
    expected: Annotated[dict[StepKey, Expected], AfterValidator(_from_the_first)]

    @property
    def steps(self) -> dict[int, float]:
        return {int(step): length for step, length in self.expected.items()}


Record = Answer | Drift
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])

# What a record answers. Another model, other weights or another dtype under the same name, another recipe or
# seed, a task whose prompts or scoring changed, or a prompt laid out otherwise is another question: answers
# are never taken from one for the other.
IDENTITY = (
    "kind", "model", "weights", "dtype", "recipe", "seed", "task", "task_version", "split", "index",
    "prompt", "layout",
)  # fmt: skip
Identity = tuple[object, ...]
_of_record, _of_fields = attrgetter(*IDENTITY), itemgetter(*IDENTITY)


def identity(asked: Record | Mapping[str, object]) -> Identity:
    """What a record answers, or will answer: two that agree in it are the same answer."""
    return _of_fields(asked) if isinstance(asked, Mapping) else _of_record(asked)


def record_of(fields: Fields) -> Record:
    """Return a checked record. A cost may be a dictionary."""
    try:
        costs = {name: Spent(**fields[name]) for name in COSTS if isinstance(fields.get(name), dict)}
        kind = Drift if fields.get("kind") == "drift" else Answer
        return kind(**fields | costs)
    except ValidationError as wrong:
        raise SettingError(f"this is no record: {error_reason(wrong)}") from wrong


def from_line(line: bytes | str) -> Record:
    """A record from a line of a journal; ValueError says what is wrong with it."""
    try:
        return _RECORD.validate_json(line)
    except ValidationError as wrong:
        raise ValueError(error_reason(wrong)) from wrong


def to_line(record: Record) -> bytes:
    """The inverse of `from_line`."""
    return _RECORD.dump_json(record)
