"""The engine of this process, and the model worker that a pool runs in each process or actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from lastword.api import Generation, generate_ids
from lastword.canvas.canvas import validate_prompts
from lastword.canvas.cost import TokenCost
from lastword.canvas.tree import tree_to
from lastword.decoding.loop import Step
from lastword.decoding.planning import plan_lengths
from lastword.embedded import EMBEDDED
from lastword.engines.base import (
    FAILED,
    TOO_LONG,
    GenerationReply,
    GenerationRequest,
    Key,
    ModelInfo,
    PredictedLength,
    ReplyDetails,
    TaskDone,
    TaskFailed,
    TaskRejected,
    TaskResult,
    WorkerEvent,
    WorkerTask,
    environment,
)
from lastword.errors import ExtraError, LastwordError, RecipeError, SettingError
from lastword.io.files import user_path
from lastword.models.base import MaskPredictor
from lastword.models.load import load
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import Plan
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import MAX_SLOTS

MIN_SLOTS = 64  # room for a short program: the median references of HumanEval and MBPP need about 50


def fit_context(recipe: Recipe, model: MaskPredictor, prompt: int) -> Recipe | None:
    """A settled recipe for a prompt of so many tokens: itself, on a shorter canvas, or None: too long."""
    room = model.max_seq_len - prompt
    if combined_traits(recipe.length).upper_bound <= room:
        return recipe
    return resolve(recipe, model, available_slots=room) if room >= MIN_SLOTS else None


MAX_ATTEMPTS = 2  # of a question alone, before it is given up
MAX_ERROR_LENGTH = 1_000  # of an error
# What is wrong with every question alike: the run is refused, and no question is to blame.
RUN_ERRORS = (ExtraError, RecipeError, SettingError)
QUEUE_FACTOR = (
    4  # times the rows that are decoded at once make a batch: what a run that is killed loses at most
)


class LocalEngine:
    """An engine of this process around a model that was loaded."""

    def __init__(self, model: MaskPredictor) -> None:
        self._model = model
        # Who listens: to every answer as it ends, by its key, and on a CPU to every step.
        self.on_reply: Callable[[Any, ReplyDetails], None] | None = None
        self.on_step: Callable[[Step], None] | None = None

    @property
    def model(self) -> MaskPredictor:
        """The one that was given."""
        return self._model

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """Replies batch by batch, shortest prompts first.

        `rows` are decoded at once, and a few times as many make a batch: a question that waits takes the
        slot of a row that is done. A question whose canvas does not fit the model's positions follows the
        rule of `room`. Where decoding a batch fails, its halves are decoded, and so on down to the question
        that is at fault, which is given up after TRIES alone.
        """
        order = sorted(requests, key=lambda key: len(requests[key].prompt_ids))
        recipes = {key: fit_context(recipe, self.model, len(requests[key].prompt_ids)) for key in requests}
        for fit, group in groupby(order, key=lambda key: recipes[key]):
            keys = list(group)
            if fit is None:
                yield [
                    GenerationReply(
                        key, "", _unasked(len(requests[key].prompt_ids)) | environment(self.model)
                    )
                    for key in keys
                ]
                continue
            for first in range(0, len(keys), max_batch_size * QUEUE_FACTOR):
                batch = {key: requests[key] for key in keys[first : first + max_batch_size * QUEUE_FACTOR]}
                yield self._answered(batch, fit, max_batch_size, {"shortened": fit != recipe})

    def predict_lengths(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[dict[Key, int]]:
        """How many slots each question is planned to take, some at a time, before any is asked.

        What does not fit the model or cannot be planned is left out: to ask it says why.
        """
        order = sorted(requests, key=lambda key: len(requests[key].prompt_ids))
        for first in range(0, len(order), max_batch_size):
            some = {key: requests[key] for key in order[first : first + max_batch_size]}
            yield {key: plan.max_horizon for key, (plan, _) in self.plans(some, recipe).items()}

    def plans(
        self, questions: Mapping[Key, GenerationRequest], recipe: Recipe
    ) -> dict[Key, tuple[Plan, TokenCost]]:
        """The plans that decoding would begin with, and what their probes cost; a question may bring its own.

        All are probed together. What does not fit the model or cannot be planned has none.
        """
        found: dict[Key, tuple[Plan, TokenCost]] = {}
        order = sorted(questions, key=lambda key: len(questions[key].prompt_ids))
        fits = {key: fit_context(recipe, self.model, len(questions[key].prompt_ids)) for key in order}
        for fit, group in groupby(order, key=lambda key: fits[key]):
            keys = list(group)
            if fit is not None:
                found |= self._planned({key: questions[key] for key in keys}, fit)
        return found

    def _planned(
        self, batch: Mapping[Key, GenerationRequest], recipe: Recipe
    ) -> dict[Key, tuple[Plan, TokenCost]]:
        """The plans of one batch; none where it fails."""
        try:
            prompts = validate_prompts([own.prompt_ids for own in batch.values()], self.model.ids)
            most = [own.max_new_tokens or MAX_SLOTS for own in batch.values()]
            bounds = most if any(own.max_new_tokens for own in batch.values()) else None
            return dict(zip(batch, plan_lengths(self.model, recipe, prompts, max_new_tokens=bounds)))
        except RUN_ERRORS:
            raise
        except Exception:  # one of them is at fault, and the others are not worth a pass each
            return {}

    def _answered(
        self, batch: Mapping[Key, GenerationRequest], recipe: Recipe, rows: int, more: ReplyDetails
    ) -> list[GenerationReply[Key]]:
        """Replies to questions decoded together; where that fails, in halves, down to the culprit."""
        keys, asked = list(batch), list(batch.values())
        tries = 1 if len(batch) > 1 else MAX_ATTEMPTS
        reason = ""
        for _ in range(tries):
            try:
                found = generate_ids(
                    self.model,
                    [own.prompt_ids for own in asked],
                    recipe,
                    [own.seed for own in asked],
                    max_batch_size=rows,
                    max_new_tokens=[own.max_new_tokens for own in asked],
                    plans=[own.plan for own in asked],
                    on_step=self.on_step if self.model.device.type == "cpu" else None,
                    on_answer=lambda row, answer: self._hear(keys[row], answer),
                )
            except RUN_ERRORS:
                raise
            except Exception as wrong:  # a part, a model or a tokenizer may be anybody's
                reason = error_text(wrong)
            else:
                shared = {
                    "rows": len(batch),
                    "batch_seconds": round(max(answer.seconds for answer in found), 6),
                } | environment(self.model)
                return [
                    GenerationReply(key, answer.text or "", _facts(answer) | shared | more)
                    for key, answer in zip(batch, found)
                ]
        if len(keys) == 1:
            facts = _unasked(len(asked[0].prompt_ids)) | more | {"finish": FAILED}
            return [GenerationReply(keys[0], "", facts, f"{reason} (tried {MAX_ATTEMPTS} times alone)")]
        half = (len(keys) + 1) // 2
        return [
            reply
            for some in (keys[:half], keys[half:])
            for reply in self._answered({key: batch[key] for key in some}, recipe, rows, more)
        ]

    def _hear(self, key: Any, answer: Generation) -> None:
        if self.on_reply is not None:
            self.on_reply(key, _facts(answer))

    def close(self) -> None:
        """The model is the caller's."""


def error_text(wrong: Exception) -> str:
    """An error as a reply tells it, on one line."""
    said = " ".join(str(wrong).split())[:MAX_ERROR_LENGTH]
    return said if isinstance(wrong, LastwordError) else f"{type(wrong).__name__}: {said}"


def _facts(answer: Generation) -> ReplyDetails:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens", "recipe")} | {
        "probe_cost": answer.probe_cost,
        "cost": answer.cost,
        "length": len(answer.tokens),
    }


def _unasked(prompt: int) -> ReplyDetails:
    """Of a question that does not fit: no answer and no work."""
    nothing = TokenCost(0, 0, 0)
    return {
        "prompt_tokens": prompt,
        "horizon": 0,
        "expected_length": None,
        "tail": None,
        "probe_cost": nothing,
        "cost": nothing,
        "seconds": 0.0,
        "finish": TOO_LONG,
        "length": 0,
        "rows": 1,
        "batch_seconds": 0.0,
        "shortened": False,
    }


CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelSource:
    """Which model workers load, and how: what `lastword.load` takes.

    A folder is found where the worker is, under the same path as here.
    """

    name: str
    device: str = "auto"
    dtype: str = "auto"
    calibration: str | None = "auto"
    weights: str | None = None

    def with_absolute_paths(self) -> ModelSource:
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


class ModelWorker:
    """A model and what a pool asks of it."""

    def __init__(self, source: ModelSource, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = source.load()
        self._local = LocalEngine(self.model)

    def model_info(self) -> ModelInfo:
        """What the pool needs to know of the model."""
        return ModelInfo.from_model(self.model)

    def run(self, job: WorkerTask) -> TaskResult:
        """A job's result, in the order of its questions. What is wrong with all of them alike is raised."""
        asked = dict(enumerate(job.requests))
        if job.kind == "predict":
            return self._predicted(asked, job.recipe)
        replies = [
            one
            for some in self._local.generate(asked, job.recipe, max_batch_size=job.max_batch_size)
            for one in some
        ]
        return sorted(replies, key=lambda reply: reply.key)

    def _predicted(self, asked: dict[int, GenerationRequest], recipe: Recipe) -> list[PredictedLength | None]:
        read = prediction_recipe(recipe)
        plans = self._local.plans(asked, read)
        found = {
            at: PredictedLength(plan.max_horizon, tree_to((plan, cost), CPU) if read == recipe else None)
            for at, (plan, cost) in plans.items()
        }
        return [found.get(at) for at in asked]


def prediction_recipe(recipe: Recipe) -> Recipe:
    """A recipe whose plan says how long answers are: where the canvas is fixed and cut, it does not."""
    fixed = any(isinstance(layer, Fixed) for layer in policy_layers(recipe.length))
    if not fixed or isinstance(recipe.length, Fixed):
        return recipe
    return replace(recipe, length=Survival(limit=combined_traits(recipe.length).upper_bound))


def run_task(worker: int, job: WorkerTask, run: Callable[[WorkerTask], TaskResult]) -> WorkerEvent:
    """What comes of a job that is run here, without a worker's death."""
    try:
        return TaskDone(worker, job.task_id, run(job))
    except RUN_ERRORS as refused:
        return TaskRejected(worker, job.task_id, refused)
    except Exception as raised:
        return TaskFailed(worker, job.task_id, error_text(raised))
