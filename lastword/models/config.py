"""A checkpoint's JSON files: what every family's config.json says, and what is told of a mistake in one.

A family declares its config.json as a class (llada.py, dream.py): the fields it reads, each with its bounds,
and as `Literal` the switches that would make another architecture of it. Fields we do not know are ignored.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from lastword.errors import CheckpointError
from lastword.io.schema import IGNORE_EXTRA, PositiveSlots, first_error, read_json_object
from lastword.models.layers import TransformerConfig
from lastword.models.path_safety import is_plain_file
from lastword.validation import short_repr

MOST_IDS = 2**24  # of a vocabulary; the largest published have some 2**18

Layers = Annotated[int, Field(ge=1, le=1_000)]
Heads = Annotated[int, Field(ge=1, le=2**12)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Vocabulary = Annotated[int, Field(ge=1, le=MOST_IDS)]
Positions = PositiveSlots
# Its powers are taken in float32.
Theta = Annotated[float, Field(ge=1, le=1e15)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
TokenId = Annotated[int, Field(ge=0, lt=MOST_IDS)]
EndIds = Annotated[
    list[TokenId],
    Field(max_length=1_000),
    BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
]

_Document = TypeVar("_Document", bound="Document")


class Document(BaseModel):
    """One of a checkpoint's JSON files, as far as we read it."""

    model_config = IGNORE_EXTRA
    builder: ClassVar[str] = "loader"  # what is built from it, in messages about switches

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Null is false for a switch, and as good as absent for everything else."""
        for name, field in cls.model_fields.items():
            if isinstance(field.default, bool) and name in data and data[name] is None:
                data = {**data, name: False}
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def read(cls: type[_Document], path: Path) -> _Document:
        """From a file that must be there."""
        return cls.of(read_json(path), path)

    @classmethod
    def of(cls: type[_Document], data: dict[str, Any], source: Path) -> _Document:
        """From the fields of a file; CheckpointError names the file and the field that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as wrong:
            raise CheckpointError(f"{source} {cls._mistake(wrong)}") from wrong

    @classmethod
    def _mistake(cls, wrong: ValidationError) -> str:
        field, first = first_error(wrong)
        published = "use the configuration published with the weights"
        if first["type"] == "missing":
            return f"lacks the field {field}, which is needed; {published}"
        said = f"says {field}={short_repr(first['input'])}"
        if first["type"] == "literal_error":
            return (
                f"{said}; our {cls.builder} is built for {first['ctx']['expected']}: "
                "wrap the authors' model with lastword.Adapter instead"
            )
        return f"{said}; {first['msg'].replace('Input should', 'it should')}: {published}"


class SpecialIds(Document):
    """The special ids a config may state."""

    mask_token_id: TokenId | None = None
    eos_token_id: EndIds = []  # the first ends a document, the others a turn
    pad_token_id: TokenId | None = None


class FamilyConfig(SpecialIds):
    """A config.json; every family has its own class of it."""

    @abstractmethod
    def shape(self) -> TransformerConfig:
        """The architecture it describes."""


class GenerationConfig(SpecialIds):
    """A generation_config.json: ids where config.json is silent, and the canvas the model is made for."""

    max_new_tokens: PositiveSlots | None = None


class WeightIndex(Document):
    """A model.safetensors.index.json: which file beside it holds a tensor."""

    weight_map: Annotated[
        dict[Annotated[str, Field(max_length=500)], Annotated[str, Field(max_length=255)]],
        Field(min_length=1, max_length=10**6),
    ]


def read_json(path: Path) -> dict[str, Any]:
    """A checkpoint's file as an object; CheckpointError says what is wrong with it."""
    if not is_plain_file(path):
        raise CheckpointError(
            f"{path.parent} has no {path.name}; give a folder in the authors' Hugging Face format"
        )
    try:
        return read_json_object(path)
    except (OSError, ValueError) as broken:
        raise CheckpointError(f"{path} cannot be read as JSON ({broken}); download it again") from broken
