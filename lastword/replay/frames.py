"""Frame: one row's canvas after a pass, as text that can be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """One row's answer after so many passes; each tuple has an entry per slot."""

    passes: int  # so far; 0: before the first
    tokens: tuple[int | None, ...]  # None: still a mask
    texts: tuple[str, ...]  # of each token by itself; empty for a mask and for an end token
    fixed: tuple[int | None, ...]  # the pass that filled the slot; 0: it was given
    confidence: tuple[float | None, ...]  # what the model gave the token then; None: nobody said
    text: str  # the answer as far as it is complete: up to the first mask or end token
    columns: int  # computed so far, probe not included
    end: int | None = (
        None  # the slot of the first end token, counted from 0; None: there is none yet
    )
