"""Heard: what is heard of an answer under way, whoever makes it, and what was wished for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from lastword.serve.protocol import AnswerDetails

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
class Drawn:
    """The canvas after a pass, an entry per slot: None for a mask."""

    texts: Sequence[str | None]
    fixed: Sequence[int | None]  # by which pass
    passes: int
    end: int | None  # the slot of the first end token


@dataclass(frozen=True)
class Added:
    """More text, which will not change any more."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The whole answer, and what it took."""

    text: str
    tokens: int | None = None  # None: nobody said
    ledger: AnswerDetails | None = None


Heard = Drawn | Added | Ended


@runtime_checkable
class Answerer(Protocol):
    """Whoever answers: a model in this process, or a server."""

    name: str
    chats: bool  # has it a chat template? Else only the last turn is read, as a plain prompt

    def ask(self, turns: Sequence[Turn], *, drawn: bool) -> Iterator[Heard]:
        """Answer the last turn, `Ended` last; `drawn`: is the canvas wanted after every pass?"""
        ...

    def replay(self, path: Path) -> Path:
        """Write the last answer as a file that plays it."""
        ...
