"""The engine of this process, and the source of a model that engines load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from lastword.api import Generation, generate_ids
from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import plan_lengths
from lastword.embedded import EMBEDDED
from lastword.engines.base import (
    FAILED,
    GenerationReply,
    GenerationRequest,
    Key,
    Lengths,
    ModelInfo,
    Replies,
    ReplyDetails,
    Requests,
    empty_details,
    environment,
)
from lastword.errors import ExtraError, LastwordError, RecipeError, SettingError
from lastword.io.files import user_path
from lastword.models.base import MaskPredictor
from lastword.models.load import load
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.prompts import validate_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import MAX_SLOTS

MIN_SLOTS = 64  # the median references of HumanEval and MBPP need about 50 tokens
MAX_ATTEMPTS = 2  # of a request alone, before it fails
MAX_ERROR_LENGTH = 1_000
RUN_ERRORS = (ExtraError, RecipeError, SettingError)  # errors that all requests share: they stop the run
QUEUE_FACTOR = 4  # requests per batch, in multiples of the rows that are decoded at once


class LocalEngine:
    """An engine in this process, with a loaded model."""

    def __init__(self, model: MaskPredictor) -> None:
        self.model = model
        self.on_reply: Callable[[Any, ReplyDetails], None] | None = None  # called as each answer finishes
        self.on_step: Callable[[Step], None] | None = None  # called after each step on a CPU

    @cached_property
    def model_info(self) -> ModelInfo:
        """The properties of the model."""
        return ModelInfo.from_model(self.model)

    def generate(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Replies[Key]:
        """Yield replies batch by batch, shortest prompts first.

        A batch has a few times `max_batch_size` requests: a waiting request takes the slot of a finished
        row. Canvases that exceed the context length are handled by `fit_context`. If a batch fails, its
        halves are decoded, and so on down to the request that fails alone.
        """
        for fitted, batch in self._batches(requests, recipe, max_batch_size * QUEUE_FACTOR):
            if fitted is not None:
                yield self._decode(batch, fitted, max_batch_size, shortened=fitted != recipe)
                continue
            shared = environment(self.model)
            yield [
                GenerationReply(key, "", empty_details(len(request.prompt_ids)) | shared)
                for key, request in batch.items()
            ]

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield the planned number of slots by key; `generate` reports why the other requests have no plan."""
        for plans in self.plan(requests, recipe, max_batch_size=max_batch_size):
            yield {key: plan.max_horizon for key, (plan, _) in plans.items()}

    def plan(
        self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[dict[Key, tuple[Plan, TokenCost]]]:
        """Yield the plans and probe costs that decoding would start with, batch by batch, as far as there are any."""
        for fitted, batch in self._batches(requests, recipe, max_batch_size):
            if fitted is None:
                continue
            limits = [request.max_new_tokens for request in batch.values()]
            bounds = [limit or MAX_SLOTS for limit in limits] if any(limits) else None
            try:
                prompts = validate_prompts([request.prompt_ids for request in batch.values()], self.model.ids)
                plans = plan_lengths(self.model, fitted, prompts, max_new_tokens=bounds)
            except RUN_ERRORS:
                raise
            except Exception:  # one request is at fault, and retries would cost a forward pass per request
                continue
            yield dict(zip(batch, plans))

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""

    def _batches(
        self, requests: Requests[Key], recipe: Recipe, size: int
    ) -> Iterator[tuple[Recipe | None, dict[Key, GenerationRequest]]]:
        """Yield batches of requests, shortest prompts first, each with the recipe that fits them, if there is one."""
        order = sorted(requests, key=lambda key: len(requests[key].prompt_ids))
        fits = {key: fit_context(recipe, self.model, len(requests[key].prompt_ids)) for key in order}
        for fitted, keys in groupby(order, key=fits.__getitem__):
            while batch := {key: requests[key] for key in islice(keys, size)}:
                yield fitted, batch

    def _decode(
        self, batch: Requests[Key], recipe: Recipe, max_batch_size: int, *, shortened: bool
    ) -> list[GenerationReply[Key]]:
        """Return the replies to one batch; if it fails, decode halves down to the request at fault."""
        keys, requests = list(batch), list(batch.values())

        def notify(row: int, generation: Generation) -> None:
            if self.on_reply is not None:
                self.on_reply(keys[row], _details(generation))

        reason = ""
        for _ in range(1 if len(batch) > 1 else MAX_ATTEMPTS):
            try:
                generations = generate_ids(
                    self.model,
                    [request.prompt_ids for request in requests],
                    recipe,
                    [request.seed for request in requests],
                    max_batch_size=max_batch_size,
                    max_new_tokens=[request.max_new_tokens for request in requests],
                    plans=[request.plan for request in requests],
                    on_step=self.on_step if self.model.device.type == "cpu" else None,
                    on_answer=notify,
                )
            except RUN_ERRORS:
                raise
            except Exception as error:  # parts, models and tokenizers of users may raise anything
                reason = error_text(error)
                continue
            seconds = round(max(generation.seconds for generation in generations), 6)
            shared = {"rows": len(batch), "batch_seconds": seconds, "shortened": shortened, **environment(self.model)}
            return [
                GenerationReply(key, generation.text or "", _details(generation) | shared)
                for key, generation in zip(keys, generations)
            ]
        if len(keys) == 1:
            details = empty_details(len(requests[0].prompt_ids), FAILED) | {"shortened": shortened}
            return [GenerationReply(keys[0], "", details, f"{reason} (tried {MAX_ATTEMPTS} times alone)")]
        half = (len(keys) + 1) // 2
        parts = ({key: batch[key] for key in part} for part in (keys[:half], keys[half:]))
        return [reply for part in parts for reply in self._decode(part, recipe, max_batch_size, shortened=shortened)]


def fit_context(recipe: Recipe, model: MaskPredictor, prompt_tokens: int) -> Recipe | None:
    """Return the recipe if it fits after the prompt, else one with a shorter canvas, or None."""
    available = model.max_seq_len - prompt_tokens
    if combined_traits(recipe.length).upper_bound <= available:
        return recipe
    return resolve(recipe, model, available_slots=available) if available >= MIN_SLOTS else None


def error_text(error: BaseException) -> str:
    """Return an error as one line for a reply."""
    message = " ".join(str(getattr(error, "cause", error)).split())[:MAX_ERROR_LENGTH]  # Ray's have a cause
    return message if isinstance(error, LastwordError) else f"{type(error).__name__}: {message}"


def _details(generation: Generation) -> ReplyDetails:
    details = generation.to_data() | {"probe_cost": generation.probe_cost, "cost": generation.cost}
    for name in ("text", "tokens", "recipe"):
        del details[name]
    return details | {"length": len(generation.tokens)}


@dataclass(frozen=True)
class ModelSource:
    """The arguments of `lastword.load`. A folder must exist under the same path on each machine."""

    name: str
    device: str = "auto"
    dtype: str = "auto"
    calibration: str | None = "auto"
    weights: str | None = None

    def with_absolute_paths(self) -> ModelSource:
        """Return a copy that does not depend on the working directory, which differs in a Ray actor."""
        reserved = {"toy", "auto", *EMBEDDED}  # names that are not paths
        fields = {"name": self.name, "calibration": self.calibration}
        paths = {field: user_path(text).absolute() for field, text in fields.items() if text and text not in reserved}
        return replace(self, **{field: str(path) for field, path in paths.items() if path.exists()})

    def load(self) -> MaskPredictor:
        """Load the model in this process."""
        return load(**vars(self))
