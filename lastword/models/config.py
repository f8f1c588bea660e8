"""A checkpoint's JSON files, read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lastword.errors import CheckpointError


class Config:
    """A JSON object whose fields are asked for by kind, so that a wrong one is named at once."""

    def __init__(self, data: dict[str, Any], source: str) -> None:
        self.data, self.source = data, source

    @classmethod
    def read(cls, path: Path, *, required: bool = True) -> Config:
        """The file as an object; an empty one if it may be missing and is."""
        if not path.is_file():
            if not required:
                return cls({}, str(path))
            raise CheckpointError(
                f"{path.parent} has no {path.name}; give a folder in the authors' Hugging Face format"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as broken:
            raise CheckpointError(f"{path} is not JSON ({broken}); download it again") from broken
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} holds no JSON object; download it again")
        return cls(content, str(path))

    def or_else(self, other: Config) -> Config:
        """These fields, and the other's where these are null or missing."""
        mine = {name: value for name, value in self.data.items() if value is not None}
        return Config({**other.data, **mine}, self.source)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, value, f"a whole number, {least} or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def expect(self, family: str, expected: dict[str, object]) -> None:
        """Refuse switches that change the architecture: such a model would load and compute nonsense."""
        for name, value in expected.items():
            given = self.data.get(name, value)
            if given != value and (given or value):  # null and false mean the same
                raise CheckpointError(
                    f"{self.source} says {name}={given!r}; our {family} is built for {value!r}: "
                    "wrap the authors' model with lastword.Adapter instead"
                )

    def _value(self, name: str, default: object) -> object:
        value = self.data.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(
                f"{self.source} lacks the field {name}, which this architecture needs; use the "
                "configuration published with the weights"
            )
        return default

    def _wrong(self, name: str, value: object, asked: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source} says {name}={value!r}; it must be {asked}: use the configuration "
            "published with the weights"
        )
