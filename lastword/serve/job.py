"""Job: what one answer needs, and what is heard of it while it is made."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.api import Generation
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import LengthDistribution
from lastword.viz.frames import Frame


@dataclass(frozen=True)
class Job:
    """One answer to be made. Whoever asks for several answers to a prompt hands in as many jobs."""

    prompt: tuple[int, ...]
    recipe: Recipe  # as it was asked for; the engine settles it
    seed: int = 0
    most: int | None = None  # tokens at most; it does not size the canvas
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    seconds: float | None = None  # from handing it in to the last token; None: as long as it takes
    in_chat: bool | None = None  # did the prompt go through the chat template?
    frames: bool = False  # is every pass to be shown?


@dataclass(frozen=True, eq=False)
class Planned:
    """The probe was read: the first thing heard of a job that was taken."""

    lengths: LengthDistribution | None  # None: the recipe's policy reads none
    horizon: int  # slots of the canvas
    passes: int  # that decoding it takes at most, as far as is known


@dataclass(frozen=True)
class Text:
    """More of the answer, which will not change any more."""

    text: str


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The canvas after a pass; only of a job that asked for frames, and only the newest is kept."""

    frame: Frame


@dataclass(frozen=True, eq=False)
class Answer:
    """The last thing heard of a job."""

    generation: Generation
    text: str  # as far as its stop strings let it go
    tokens: int  # of the text
    cut: bool  # is it shorter than what the model would have written: by its cap, or a canvas that was full?
    stopped: str | None  # the stop string that ended it
    queued: float  # seconds until it had a slot
    decoding: float  # seconds since


Event = Planned | Text | Snapshot | Answer
