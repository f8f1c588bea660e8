"""Readers of prompt files: JSON lines, Parquet rows, or lines of plain text."""

from __future__ import annotations

import glob
import gzip
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from string import whitespace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Strict, Tag

from lastword.errors import PromptError, import_extra
from lastword.io.files import file_errors
from lastword.io.schema import IGNORE_EXTRA, LongText, Text, parse_json, validate
from lastword.validation import MAX_COUNT, MAX_SLOTS, check_int, short_repr

JSON_LINES, PARQUET, GZIP = (".jsonl", ".ndjson"), (".parquet",), ".gz"
MAX_LINE_LENGTH = 64 * 2**20  # characters
ROWS_PER_BATCH = 1024
PROMPT_FIELDS = ("prompt", "messages", "tokens")

LineId = Annotated[Text, Field(min_length=1)] | Annotated[int, Strict(), Field(ge=-MAX_COUNT, le=MAX_COUNT)]
PromptText = Annotated[LongText, Field(min_length=1)]
PromptIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=MAX_SLOTS)]


class ChatMessage(BaseModel):
    """A message of a conversation. Other fields are kept, because chat templates may use them."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[Text, Field(min_length=1)]
    content: LongText


ChatMessages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_SLOTS)]


def _kind(value: object) -> str | None:
    """Return the tag of the kind of prompt that a value resembles: pydantic validates it as this kind only."""
    if isinstance(value, list):
        return "messages" if any(isinstance(item, (dict, ChatMessage)) for item in value) else "ids"
    return "text" if isinstance(value, str) else "message" if isinstance(value, dict) else None


AnyPrompt = Annotated[
    Annotated[PromptText, Tag("text")]
    | Annotated[PromptIds, Tag("ids")]
    | Annotated[ChatMessages, Tag("messages")]
    | Annotated[ChatMessage, Tag("message")],
    Discriminator(
        _kind,
        custom_error_type="prompt",
        custom_error_message="Input should be text, a list of token ids, or chat messages",
    ),
]


class PromptLine(BaseModel):
    """A validated line of a prompt file with one prompt. Other fields are ignored."""

    model_config = IGNORE_EXTRA

    prompt: AnyPrompt | None = None
    messages: ChatMessages | None = None
    tokens: PromptIds | None = None
    id: LineId | None = None
    custom_id: LineId | None = None

    def as_prompt(self, *, chat: bool) -> Any:
        """Return the prompt as text, token ids or messages; with `chat`, text becomes a user message."""
        prompt = next(value for value in (self.prompt, self.messages, self.tokens) if value is not None)
        if isinstance(prompt, ChatMessage):
            prompt = [prompt]
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}] if chat else prompt
        return [item.model_dump() if isinstance(item, ChatMessage) else item for item in prompt]


Line = TypeVar("Line", bound=PromptLine)


def parse_prompt_line(data: object, kind: type[Line]) -> Line:
    """Return the JSON data of a line as an object of class `kind`; PromptError unless it has exactly one prompt."""
    if not isinstance(data, dict):
        raise PromptError(f'it is not an object with a "prompt": {short_repr(data)}')
    kinds = [name for name in PROMPT_FIELDS if data.get(name) is not None]
    if not kinds:
        names = ", ".join(map(short_repr, data)) or "none"
        raise PromptError(f"it has no field prompt, messages or tokens; it has {names:.200}")
    if len(kinds) > 1:
        raise PromptError(f"it has {' and '.join(kinds)}; give one of them")
    try:
        return validate(kind, data)
    except ValueError as error:
        raise PromptError(str(error)) from error


@dataclass(frozen=True)
class PromptRecord:
    """The JSON data of a line or row of a prompt file, or the reason why it cannot be read."""

    index: int  # counted from 0; blank lines are not counted
    where: str  # "line 7" or "row 7"
    data: Any
    error: str | None


class PromptFile:
    """An iterable of the prompts of one or several files, which may be read several times.

    A path may be a pattern such as `data/*.jsonl.gz`, or a folder, whose .jsonl, .ndjson and .parquet files are read in
    the order of their names. If a file changed, PromptError is raised. In a file that is neither JSON lines nor
    Parquet, each line of text becomes an object with a "prompt".
    """

    def __init__(self, *paths: Path) -> None:
        self.paths = [file for path in paths for file in _files_of(path)]
        self.name = ", ".join(map(str, paths))
        self._status = [self._stat(path) for path in self.paths]

    def __iter__(self) -> Iterator[PromptRecord]:
        numbers = count()
        for path in self.paths:
            self._check_unchanged()
            place = f" of {path}" if len(self.paths) > 1 else ""
            with _read_errors(path):
                for where, data, error in _rows(path) if suffix_of(path) in PARQUET else _lines(path):
                    yield PromptRecord(next(numbers), where + place, data, error)
        self._check_unchanged()

    def digest(self) -> str:
        """Return the SHA-256 of the content of the files, one after the other, in hexadecimal."""
        digest = sha256()
        for path in self.paths:
            with _read_errors(path), path.open("rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
        return digest.hexdigest()

    def _stat(self, path: Path) -> tuple[int, ...]:
        with _read_errors(path):
            status = path.stat()
            if not path.is_file():
                raise ValueError("it is not a regular file")
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _check_unchanged(self) -> None:
        for path, status in zip(self.paths, self._status):
            if self._stat(path) != status:
                raise PromptError(
                    f"{path} was changed while it was read, so its lines may have other answers; give the "
                    "command again, with another --out"
                )


def suffix_of(path: Path) -> str:
    """Return the suffix that tells the format of a file, in lower case and without .gz."""
    return (path.with_suffix("") if path.suffix.lower() == GZIP else path).suffix.lower()


def _files_of(path: Path) -> list[Path]:
    """Return the files of a pattern or folder, sorted, or the path itself."""
    files = [path]
    if os.path.isdir(path):  # False where pathlib raises an error
        files = sorted(file for file in path.rglob("*") if suffix_of(file) in JSON_LINES + PARQUET and file.is_file())
    elif glob.has_magic(str(path)) and not os.path.exists(path):
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    if not files:
        raise PromptError(f"{path} has no .jsonl or .parquet files; give files, a folder with some, or a pattern")
    return files


def _rows(path: Path) -> Iterator[tuple[str, Any, None]]:
    rows = count(1)
    with import_pyarrow().parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"it has two columns of the name {short_repr(repeated[0])}")
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
            for row, number in zip(batch.to_pylist(), rows):
                yield f"row {number}", _without_nulls(row), None


def _lines(path: Path) -> Iterator[tuple[str, Any, str | None]]:
    is_json = suffix_of(path) in JSON_LINES
    newline = "\n" if is_json else None  # None: any line end
    opened = gzip.open if path.suffix.lower() == GZIP else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_LENGTH + 1), ""), 1):
            too_long = len(line) > MAX_LINE_LENGTH and not line.endswith("\n")
            if too_long:
                yield f"line {number}", None, f"it has more than {MAX_LINE_LENGTH} characters"
            elif line.strip(whitespace):
                yield f"line {number}", *_parse(line, is_json=is_json)
            while too_long and (part := file.readline(MAX_LINE_LENGTH)) and not part.endswith("\n"):
                pass


def _parse(line: str, *, is_json: bool) -> tuple[Any, str | None]:
    """Return the data of a line, and the reason if it is invalid."""
    try:
        content = line.removesuffix("\n").encode()
        data = parse_json(content) if is_json else {"prompt": content.decode()}
        return data, "it contains a NUL byte; is it a text file?" if b"\0" in content else None
    except UnicodeEncodeError:
        return None, "it is not UTF-8; save the file as UTF-8 text"
    except ValueError as reason:
        return None, f"it is not JSON ({reason})"


def _read_errors(path: Path) -> AbstractContextManager[None]:
    """Return a context manager that raises PromptError if the file cannot be read."""
    problem = f"the prompts in {short_repr(str(path))} cannot be read"
    return file_errors(problem, "give a .jsonl, .parquet or text file", PromptError)


def import_pyarrow() -> Any:
    """Return pyarrow with its Parquet module imported, or raise ExtraError."""
    return import_extra("pyarrow.parquet", "eval", "Parquet")


def _without_nulls(value: Any) -> Any:
    """Return a value without its null fields: a row of a Parquet file has all columns of the file."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def read_prompts(
    path: Path, family_field: str | None = None, *, limit: int | None = None
) -> tuple[list[Any], list[str | None]]:
    """Return the first `limit` prompts of a file and, for each, its family: the value of `family_field`, or None.

    Raise PromptError for the first line that is not a valid prompt.
    """
    if limit is not None:
        check_int("read_prompts", "limit", limit, minimum=1)
    suffix = suffix_of(path)
    if suffix == ".json":
        raise PromptError(f"{path.name} ends in .json; give .jsonl (an object per line) or text (a prompt per line)")
    if family_field is not None and suffix not in JSON_LINES + PARQUET:
        raise PromptError(
            f"a family field was given for {path.name}, whose lines are prompts; families need a .jsonl "
            "file: give one, or leave the field out"
        )
    prompts: list[Any] = []
    families: list[str | None] = []
    for record in islice(PromptFile(path), limit):
        try:
            if record.error is not None:
                raise PromptError(record.error)
            prompts.append(parse_prompt_line(record.data, PromptLine).as_prompt(chat=False))
            families.append(None if family_field is None else _read_family(record.data, family_field))
        except PromptError as error:
            raise PromptError(f"{record.where} of {path.name}: {error}") from error
    if not prompts:
        raise PromptError(f"{path.name} has no prompts; give it one per line")
    return prompts, families


def _read_family(data: dict[str, Any], field: str) -> str | None:
    if field not in data:
        raise PromptError(f"it has no field {field!r}; it has {', '.join(map(short_repr, data)):.200}")
    try:
        family = validate(LineId | None, data[field])  # type: ignore[arg-type]  # a union
    except ValueError as error:
        raise PromptError(f"family: {short_repr(data[field])} is not a name") from error
    return None if family is None else str(family)  # families may be numbered
