"""Worker: what runs in every place of a pool. It loads the model once, predicts lengths and answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lastword.canvas.tree import tree_to
from lastword.embedded import EMBEDDED
from lastword.engines.elsewhere import Elsewhere
from lastword.engines.engine import Question
from lastword.engines.local import Local
from lastword.engines.places import Job, Predicted, Result
from lastword.io.files import user_path
from lastword.models.base import MaskPredictor
from lastword.models.load import load
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrapper import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Source:
    """Which model workers load, and how: what `lastword.load` takes.

    A folder is found where the worker is, under the same path as here.
    """

    name: str
    device: str = "auto"
    dtype: str = "auto"
    calibration: str | None = "auto"
    weights: str | None = None

    def in_full(self) -> Source:
        """The same with whole paths: an actor works in another folder than we do, be it on this machine."""
        paths = {"name": self.name, "calibration": self.calibration}
        known = {"toy", "auto", *EMBEDDED}  # what `load` does not take for a path
        found = {
            name: user_path(path).absolute() for name, path in paths.items() if path and path not in known
        }
        return replace(self, **{name: str(path) for name, path in found.items() if path.exists()})

    def load(self) -> MaskPredictor:
        """The model, here."""
        return load(
            self.name,
            device=self.device,
            dtype=self.dtype,
            calibration=self.calibration,
            weights=self.weights,
        )


class Worker:
    """A model and what a pool asks of it."""

    def __init__(self, source: Source, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = source.load()
        self._local = Local(self.model)

    def about(self) -> Elsewhere:
        """What the pool needs to know of the model."""
        return Elsewhere.of(self.model)

    def run(self, job: Job) -> Result:
        """A job's result, in the order of its questions. What is wrong with all of them alike is raised."""
        asked = dict(enumerate(job.questions))
        if job.kind == "predict":
            return self._predicted(asked, job.recipe)
        replies = [one for some in self._local.ask(asked, job.recipe, rows=job.rows) for one in some]
        return sorted(replies, key=lambda reply: reply.key)

    def _predicted(self, asked: dict[int, Question], recipe: Recipe) -> list[Predicted | None]:
        read = predicting(recipe)
        plans = self._local.plans(asked, read)
        found = {
            at: Predicted(plan.max_horizon, tree_to((plan, cost), CPU) if read == recipe else None)
            for at, (plan, cost) in plans.items()
        }
        return [found.get(at) for at in asked]


def predicting(recipe: Recipe) -> Recipe:
    """A recipe whose plan says how long answers are: where the canvas is fixed and cut, it does not."""
    fixed = any(isinstance(layer, Fixed) for layer in policy_layers(recipe.length))
    if not fixed or isinstance(recipe.length, Fixed):
        return recipe
    return replace(recipe, length=Survival(limit=combined_traits(recipe.length).upper_bound))
