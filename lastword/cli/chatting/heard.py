"""Heard: what is heard of an answer under way, whoever makes it, and what was wished for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lastword.serve.api.replies import Ledger

Turn = dict[str, str]  # role and content


@dataclass(frozen=True)
class Wishes:
    """Options of every answer; None leaves a choice to the recipe, or to whoever answers."""

    recipe: str | None = None  # a name, or a file of JSON
    length: str | None = None
    temperature: float | None = None
    seed: int | None = None  # None: another for every answer, where anything is drawn
    most: int | None = None  # tokens


@dataclass(frozen=True)
class Noted:
    """A sentence about the model, to be said once."""

    sentence: str


@dataclass(frozen=True)
class Drawn:
    """The canvas after a pass, an entry per slot: None for a mask, an empty text for an end token."""

    texts: Sequence[str | None]
    fixed: Sequence[int | None]  # by which pass
    passes: int


@dataclass(frozen=True)
class Added:
    """More text, which will not change any more."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The whole answer, and what it took."""

    text: str
    tokens: int | None = None  # None: nobody said
    ledger: Ledger | None = None


Heard = Noted | Drawn | Added | Ended


class Answerer(Protocol):
    """Whoever answers: a model in this process, or a server."""

    name: str

    def ask(self, turns: Sequence[Turn], *, drawn: bool) -> Iterator[Heard]:
        """Answer the last turn, `Ended` last; `drawn`: is the canvas wanted after every pass?"""
        ...

    def replay(self, path: Path) -> Path:
        """Write the last answer as a file that plays it."""
        ...


NO_TEMPLATE = (
    "{name} has no chat template: each line is a prompt of its own, and what was said before is not "
    "read again"
)
NO_SYSTEM = (
    "a system message was given and {name} has no chat template to put it in; leave --system out, or "
    "chat with an instruct model"
)
