"""The engine that decodes in this process, and `ModelSource`, the description of a model for workers to load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice

from lastword.api import Generation, generate_ids
from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import DecodeSettings, Step
from lastword.decoding.running_batch import DecodeRequest, plan_lengths
from lastword.decoding.sampling import RowGenerators
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
    portions,
    request_pairs,
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

MIN_SLOTS = 64  # of a shortened canvas: the median references of HumanEval and MBPP have about 50 tokens
MAX_ATTEMPTS = 2  # to decode a request in a batch of its own, before it fails
MAX_ERROR_LENGTH = 1_000
RUN_ERRORS = (ExtraError, RecipeError, SettingError)  # errors that every request would cause: they stop the run
QUEUE_FACTOR = 16  # requests per batch or task, in multiples of `max_batch_size`


class LocalEngine:
    """An engine that decodes in this process, with a loaded model."""

    def __init__(self, model: MaskPredictor) -> None:
        self.model = model
        self.on_step: Callable[[Step], None] | None = None  # called after each step on a CPU

    @cached_property
    def model_info(self) -> ModelInfo:
        """The properties of the model, computed on the first access."""
        return ModelInfo.from_model(self.model)

    def generate(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Replies[Key]:
        """Yield each reply as soon as its answer is finished, shortest prompts first.

        A queue has up to `QUEUE_FACTOR * max_batch_size` requests, and a waiting request takes the place of a
        finished row. `fit_context` shortens canvases that exceed the context length. If decoding fails, the halves of
        the unanswered requests are decoded, then their halves, until only the requests that cause the failure fail.
        """
        surroundings = environment(self.model)
        for portion in portions(requests):
            shared = {"rows": min(max_batch_size, len(portion)), **surroundings}
            for chosen, fitted, batch in self._batches(portion, recipe, max_batch_size * QUEUE_FACTOR):
                if fitted is not None:
                    shared["shortened"] = fitted != chosen
                    for reply in self._decode(batch, fitted, max_batch_size):
                        yield [replace(reply, details=reply.details | shared)]
                    continue
                yield [
                    GenerationReply(key, "", empty_details(len(request.prompt_ids)) | shared | {"shortened": False})
                    for key, request in batch.items()
                ]

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield the planned number of slots by key, batch by batch; `generate` reports why a request has none."""
        for plans in self.plan(requests, recipe, max_batch_size=max_batch_size):
            yield {key: plan.max_horizon for key, (plan, _) in plans.items()}

    def plan(
        self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[dict[Key, tuple[Plan, TokenCost]]]:
        """Yield plans and probe costs by key, without decoding; batches that cannot be planned are left out."""
        for _, fitted, batch in self._batches(dict(request_pairs(requests)), recipe, max_batch_size):
            if fitted is None:
                continue
            limits = [request.max_new_tokens for request in batch.values()]
            try:
                prompts = validate_prompts([request.prompt_ids for request in batch.values()], self.model.ids)
                plans = plan_lengths(self.model, fitted, prompts, max_new_tokens=limits)
            except RUN_ERRORS:
                raise
            except Exception:  # caused by one request; a search for it would cost a forward pass per request
                continue
            yield dict(zip(batch, plans))

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""

    def _batches(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, size: int
    ) -> Iterator[tuple[Recipe, Recipe | None, dict[Key, GenerationRequest]]]:
        """Yield batches, shortest prompts first, each with its recipe and that of `fit_context` (None: too long)."""
        by_recipe: dict[Recipe, list[Key]] = {}
        for key in sorted(requests, key=lambda key: len(requests[key].prompt_ids)):
            by_recipe.setdefault(requests[key].recipe or recipe, []).append(key)
        for chosen, order in by_recipe.items():
            fits = {key: fit_context(chosen, self.model, len(requests[key].prompt_ids)) for key in order}
            for fitted, keys in groupby(order, key=fits.__getitem__):
                while batch := {key: requests[key] for key in islice(keys, size)}:
                    yield chosen, fitted, batch

    def _decode(
        self, batch: Mapping[Key, GenerationRequest], recipe: Recipe, max_batch_size: int
    ) -> Iterator[GenerationReply[Key]]:
        """Yield the replies to a batch; if it fails, decode the halves of its rest, down to single requests."""
        keys, requests, answered = list(batch), list(batch.values()), set[int]()
        reason = ""
        for _ in range(1 if len(batch) > 1 else MAX_ATTEMPTS):
            try:
                tokens = validate_prompts([request.prompt_ids for request in requests], self.model.ids)
                prompts = [
                    DecodeRequest(
                        prompt,
                        RowGenerators([request.seed], self.model.device),
                        request.max_new_tokens,
                        request.stop,
                        request.plan,
                    )
                    for prompt, request in zip(tokens, requests)
                ]
                settings = DecodeSettings(max_batch_size=max_batch_size)
                on_step = self.on_step if self.model.device.type == "cpu" else None
                for row, generation in generate_ids(self.model, prompts, recipe, settings, on_step=on_step):
                    answered.add(row)
                    yield GenerationReply(keys[row], generation.text or "", _details(generation))
                return
            except RUN_ERRORS:
                raise
            except Exception as error:  # user-defined parts, models and tokenizers may raise any error
                reason = error_text(error)
        rest = [key for row, key in enumerate(keys) if row not in answered]
        if len(keys) == 1:
            details = empty_details(len(requests[0].prompt_ids), FAILED)
            yield GenerationReply(keys[0], "", details, f"{reason} (tried {MAX_ATTEMPTS} times alone)")
            return
        half = (len(rest) + 1) // 2
        for part in filter(None, (rest[:half], rest[half:])):
            yield from self._decode({key: batch[key] for key in part}, recipe, max_batch_size)


def fit_context(recipe: Recipe, model: MaskPredictor, prompt_tokens: int) -> Recipe | None:
    """Return the recipe, with its canvas shortened to the context length; None if `MIN_SLOTS` slots do not fit."""
    available = model.max_seq_len - prompt_tokens
    if combined_traits(recipe.length).upper_bound <= available:
        return recipe
    return resolve(recipe, model, available_slots=available) if available >= MIN_SLOTS else None


def error_text(error: BaseException) -> str:
    """Return the message of an error as one line, after the type of the error unless it is a LastwordError."""
    message = " ".join(str(getattr(error, "cause", error)).split())[:MAX_ERROR_LENGTH]  # Ray wraps the error
    return message if isinstance(error, LastwordError) else f"{type(error).__name__}: {message}"


def _details(generation: Generation) -> ReplyDetails:
    details = generation.to_data() | {"probe_cost": generation.probe_cost, "cost": generation.cost}
    for name in ("text", "tokens", "recipe", "chat"):
        del details[name]
    if generation.stop_reason is None:
        del details["stop_reason"]
    return details | {"length": len(generation.tokens), "seconds_share": round(generation.seconds_share, 6)}


@dataclass(frozen=True)
class ModelSource:
    """Arguments of `lastword.load`, which workers call. A model folder must have the same path on every machine."""

    name: str
    device: str = "auto"
    dtype: str = "auto"
    calibration: str | None = "auto"
    quantization: str | None = None

    def with_absolute_paths(self) -> ModelSource:
        """Return a copy that does not depend on the working directory, which differs in a Ray actor."""
        reserved = {"toy", "auto", *EMBEDDED}  # names that are not paths
        fields = {"name": self.name, "calibration": self.calibration}
        paths = {field: user_path(text).absolute() for field, text in fields.items() if text and text not in reserved}
        return replace(self, **{field: str(path) for field, path in paths.items() if path.exists()})

    def load(self) -> MaskPredictor:
        """Load the model into this process and return it."""
        return load(**vars(self))
