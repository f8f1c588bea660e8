"""Schemas of the JSON files of a checkpoint folder; errors name the file and the field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from lastword.embedded import FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError
from lastword.io.schema import IGNORE_EXTRA, PositiveSlots, first_error, read_json_object
from lastword.validation import short_repr

MAX_VOCAB_SIZE = 2**24  # the largest published vocabularies have about 2**18 ids

TokenId = Annotated[int, Field(ge=0, lt=MAX_VOCAB_SIZE)]
EndIds = Annotated[
    list[TokenId], Field(max_length=1_000), BeforeValidator(lambda ids: ids if isinstance(ids, list) else [ids])
]

_Document = TypeVar("_Document", bound="Document")


class Document(BaseModel):
    """A JSON file of a checkpoint; fields of the file that are not declared here are ignored."""

    model_config = IGNORE_EXTRA
    architecture: ClassVar[str] = "loader"  # named in messages about unsupported switches
    remedy: ClassVar[str] = "use the configuration published with the weights"
    alternative: ClassVar[str] = "wrap the authors' model with lastword.Adapter instead"  # to unsupported switches

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Replace null by false in boolean fields and remove it from all others, before validation."""
        for name, field in cls.model_fields.items():
            name = field.alias or name
            if isinstance(field.default, bool) and name in data and data[name] is None:
                data = {**data, name: False}
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def read(cls: type[_Document], path: Path) -> _Document:
        """Return the validated content of a file; CheckpointError if the file is missing or invalid."""
        return cls.parse(read_json(path), path)

    @classmethod
    def parse(cls: type[_Document], data: dict[str, Any], source: Path) -> _Document:
        """Return the validated `data` of a file; CheckpointError names the file `source` and the wrong field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise CheckpointError(f"{source} {cls._describe(error)}") from error

    @classmethod
    def _describe(cls, error: ValidationError) -> str:
        field, first = first_error(error.errors(include_url=False))
        if first["type"] == "missing":
            return f"lacks the field {field}, which is needed; {cls.remedy}"
        value = f"has {field}={short_repr(first['input'])}"
        if first["type"] == "literal_error":
            return f"{value}; our {cls.architecture} is built for {first['ctx']['expected']}: {cls.alternative}"
        return f"{value}; {first['msg'].replace('Input should', 'it should')}: {cls.remedy}"


class SpecialIds(Document):
    """The special token ids that config.json and generation_config.json may have."""

    mask_token_id: TokenId | None = None
    eos_token_id: EndIds = []  # the first ends a document, the others a turn
    pad_token_id: TokenId | None = None


class GenerationConfig(SpecialIds):
    """The content of generation_config.json: ids that config.json may lack, and defaults for answers."""

    max_new_tokens: PositiveSlots | None = None
    single_turn: bool = False  # whether the model was trained on one question and one answer

    @classmethod
    def of_folder(cls, folder: Path) -> GenerationConfig:
        """Return the content of a folder's generation_config.json; all fields are unset if there is no such file."""
        path = folder / "generation_config.json"
        return cls.read(path) if is_plain_file(path) else cls()


class WeightIndex(Document):
    """The content of model.safetensors.index.json: the name of the file that holds each tensor."""

    weight_map: Annotated[
        dict[Annotated[str, Field(max_length=500)], Annotated[str, Field(max_length=255)]],
        Field(min_length=1, max_length=10**6),
    ]


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; CheckpointError if the file is missing or broken."""
    if not is_plain_file(path):
        raise CheckpointError(f"{path.parent} has no {path.name}; give a folder in the authors' Hugging Face format")
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); download it again") from error


def is_plain_file(path: Path) -> bool:
    """Return whether a file exists; CheckpointError if it links to another folder or is not a regular file.

    The folder itself may be a link, and files in the hub's cache may link to its blobs.
    """
    if not os.path.lexists(path):
        return False
    folder, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    allowed = [folder]
    if folder.parent.name == "snapshots":  # of the hub's cache
        allowed.append(folder.parent.parent / "blobs")
    embedded = path.parent.parent == EMBEDDED_FOLDER  # package installers may link files
    if target.parent not in allowed and not embedded:
        raise CheckpointError(
            f"{path} is a link to {target}, outside of its folder; a checkpoint's files lie in one "
            "folder: copy the file there in place of the link"
        )
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is not a plain file; download it again")
    return True
