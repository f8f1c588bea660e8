"""Row: a job under way, and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lastword.canvas.cost import TokenCost
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.serve.committed import Committed
from lastword.serve.job import Job
from lastword.serve.schedule import Predicted
from lastword.serve.session import Session
from lastword.serve.stream import Stream
from lastword.viz.frames import RowTrace


@dataclass(frozen=True, eq=False)
class Planned:
    """What a job's probe came to."""

    plan: Plan
    probe_cost: TokenCost
    predicted: Predicted


@dataclass(eq=False)
class Row:
    """A job under way: first it is planned, then it waits, then it has a session and a slot there."""

    number: int
    stream: Stream
    recipe: Recipe  # as it was settled
    prompt: Tensor
    arrived: float
    committed: Committed
    trace: RowTrace | None = None  # of a job that asked for frames
    planned: Planned | None = None
    session: Session | None = None
    reserved: int = 0  # columns
    columns: int = 0  # computed so far
    passes: int = 0  # taken so far
    began: float | None = None  # when it took a slot
    told: float | None = None  # when its first text went out
    alone: bool = False  # must it decode alone, since a pass that it took part in failed?

    @property
    def job(self) -> Job:
        return self.stream.job

    @property
    def deadline(self) -> float:
        seconds = self.job.seconds
        return float("inf") if seconds is None else self.arrived + seconds
