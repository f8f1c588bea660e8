"""The schema of records, which journals, Parquet files and tables share.

An `Answer` contains a decoded answer with its score and costs, a `Drift` the expected lengths at several
steps of decoding. Types, bounds, finiteness and nesting of all values are checked when a record is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lastword.errors import LastwordError, SettingError
from lastword.io.schema import STRICT, Count, LongText, Seed, Share, SlotCount, Text, error_reason
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import REREGISTERED
from lastword.validation import MAX_SLOTS

Fields = dict[str, Any]  # fields of a record by name
FinishName = Literal["ended", "truncated", "masks_left", "too_long"]

Seconds = Annotated[float, Field(ge=0, le=10**9)]
ExpectedLength = Annotated[float, Field(ge=0, le=MAX_SLOTS)]
StepKey = Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]  # a number of steps: keys of JSON objects are text


@lru_cache(maxsize=4096)
def _parse_recipe(text: str, reregistered: int) -> Recipe:
    """Parse a recipe. `reregistered` is part of the cache key: it grows when a part name gets another class."""
    return Recipe.from_json(text)


def _to_recipe(value: object) -> Recipe:
    """Return the recipe that a JSON object describes; equal JSON objects give one shared recipe."""
    if isinstance(value, Recipe):
        return value
    if not isinstance(value, dict):
        raise ValueError("a recipe is a JSON object")
    try:
        return _parse_recipe(json.dumps(value), len(REREGISTERED))
    except (LastwordError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)[:400]) from error  # the message may quote the whole value


@lru_cache(maxsize=4096)
def recipe_data(recipe: Recipe) -> Fields:
    """Return a recipe as parsed JSON. The result is cached: do not change it."""
    return json.loads(recipe.to_json())


def _check_first_step(expected: dict[str, float]) -> dict[str, float]:
    if "0" not in expected:
        raise ValueError("later steps are compared with step 0, which is missing")
    return expected


RecipeField = Annotated[Recipe, PlainValidator(_to_recipe), PlainSerializer(recipe_data)]


@dataclass(frozen=True, slots=True, config=STRICT)
class RecordedCost:
    """A cost in forward passes, computed tokens, and pairs of a computed and an attended token."""

    # Records written before version 0.2 have the second aliases.
    forward_passes: Count = Field(validation_alias=AliasChoices("forward_passes", "passes"))
    tokens_computed: Count = Field(validation_alias=AliasChoices("tokens_computed", "columns"))
    # None in published records
    attention_pairs: Count | None = Field(None, validation_alias=AliasChoices("attention_pairs", "squares"))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BaseRecord:
    """The fields that all kinds of records share: sample, model and settings."""

    model: Text
    weights: Text  # a fingerprint: other weights under the same name are another model
    recipe: RecipeField
    seed: Seed
    task: Text
    group: Text  # the benchmark of the task
    task_version: Text
    split: Text
    index: Count  # of the sample in its task
    prompt: Text | None = None  # a digest; None in published records
    layout: Text  # "chat", "bos" or "plain"
    hardware: Text
    dtype: Text
    versions: dict[Text, Text]
    sandbox: dict[Text, Count | Seconds | Text] | None = None  # None: the task runs no code


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Answer(BaseRecord):
    """A decoded answer with its score and costs."""

    kind: Literal["answer"] = "answer"
    prompt_tokens: Count
    horizon: SlotCount  # planned slots; 0 if the prompt was too long
    expected_length: ExpectedLength | None = None  # None: the policy did not probe
    tail: Share | None = None  # probability that the answer exceeds the canvas
    probe_cost: RecordedCost | None  # None: a server reported no cost, or `cost` includes it
    cost: RecordedCost | None  # None: a server reported no cost
    seconds: Seconds | None = None  # of the steps in which this row ran; before 0.2, since the start of its batch
    finish: FinishName
    length: SlotCount | None = None  # tokens of the answer, without the end token
    rows: Annotated[int, Field(ge=1, le=10**6)]  # rows decoded at once; before 0.2, rows that share `batch_seconds`
    # The row's share of the time: the seconds of a step are divided equally among its rows. None: other work ran on
    # the machine. Records from before 0.2 have `batch_seconds` instead.
    seconds_share: Seconds | None = None
    batch_seconds: Seconds | None = None
    shortened: bool = False  # the canvas was shortened to the context length
    refused: bool = False  # the program is not plain Python and, without a sandbox, was not run
    text: LongText | None = None  # None in published records
    score: Share

    @property
    def forward_passes(self) -> int:
        """The number of forward passes, probe included; 0 if unknown."""
        return sum(cost.forward_passes for cost in (self.cost, self.probe_cost) if cost)

    @property
    def tokens_computed(self) -> int:
        """The number of computed tokens, probe included; 0 if unknown."""
        return sum(cost.tokens_computed for cost in (self.cost, self.probe_cost) if cost)

    @property
    def share_of_time(self) -> float | None:
        """The seconds that this answer took of the machine's time, or None if they were not measured."""
        if self.seconds_share is None and self.batch_seconds is not None:
            return self.batch_seconds / self.rows
        return self.seconds_share

    @property
    def correct(self) -> bool:
        return self.score > 0.5


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Drift(BaseRecord):
    """The expected lengths of an answer: at step 0, before decoding, and at later steps."""

    kind: Literal["drift"]
    expected: Annotated[dict[StepKey, ExpectedLength], AfterValidator(_check_first_step)]

    @property
    def steps(self) -> dict[int, float]:
        return {int(step): length for step, length in self.expected.items()}


Record = Answer | Drift
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])

# The fields that identify a question. A record that differs in any of them is never reused for it.
IDENTITY = (
    "kind", "model", "weights", "dtype", "recipe", "seed", "task", "task_version", "split", "index",
    "prompt", "layout",
)  # fmt: skip
Identity = tuple[object, ...]
_record_identity, _fields_identity = attrgetter(*IDENTITY), itemgetter(*IDENTITY)


def identity(record: Record | Mapping[str, object]) -> Identity:
    """Return the values of the `IDENTITY` fields, given a record or a mapping of its fields."""
    return _fields_identity(record) if isinstance(record, Mapping) else _record_identity(record)


def make_record(fields: Fields) -> Record:
    """Return a record, or raise SettingError for an invalid field. A cost may be a dictionary or a tuple."""
    try:
        costs = {}
        for name in ("cost", "probe_cost"):
            if isinstance(cost := fields.get(name), dict):
                costs[name] = RecordedCost(**cost)
            elif isinstance(cost, tuple):
                costs[name] = RecordedCost(*cost)
        kind = Drift if fields.get("kind") == "drift" else Answer
        return kind(**fields | costs)
    except ValidationError as error:
        raise SettingError(f"not a record: {error_reason(error)}") from error


def from_line(line: bytes | str) -> Record:
    """Parse a line of a journal; raise ValueError if it is not a record."""
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        raise ValueError(error_reason(error)) from error


def to_line(record: Record) -> bytes:
    """Return a record as a line of JSON without a newline."""
    return _RECORD.dump_json(record)
