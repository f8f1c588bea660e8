"""The decoding loop: from token ids to finished canvases, one `Step` per forward pass."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tokens import PromptIds
from lastword.decoding.forward import BatchCost, Forward, Hooks, TokenCost
from lastword.decoding.prediction import Prediction
from lastword.decoding.running_batch import (
    DecodeRequest,
    FinishedRow,
    PlannedRequest,
    PromptQueue,
    RequestQueue,
    RunningBatch,
)
from lastword.decoding.sampling import RowGenerators, check_seed, check_seeds
from lastword.decoding.static_shapes import PhaseScheduler
from lastword.decoding.step import CanvasLayout, StepDetails, Stepper, supports_static_shapes
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import MaskPredictor, check_model
from lastword.policies.length.policy import Plan
from lastword.prompts import validate_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import check_prompt_options, resolve
from lastword.validation import (
    MAX_COUNT,
    MAX_SLOTS,
    check_choice,
    check_int,
    check_list,
    check_type,
    checks_arguments,
    is_list,
    short_repr,
)

__all__ = ["Step", "decode"]


@dataclass(frozen=True, eq=False)
class Step:
    """The state after one decoding step, or after several that were replayed as CUDA graphs.

    The batch has one row per prompt, or `max_batch_size` rows if there are more prompts; `request_ids` maps
    rows to prompts. `prediction` holds the logits of the pass, so a list of all steps needs much memory.
    """

    clock: Clock  # before the step
    canvas: Canvas  # after the step, as is `cost`
    requests: tuple[PlannedRequest, ...]  # of every row; of a free row, the request that it had last
    cost: BatchCost
    recipe: Recipe  # resolved
    request_ids: tuple[int | None, ...]  # index of the prompt in every row; None: the row is free
    finished: tuple[FinishedRow, ...]  # rows that this step finished
    details: StepDetails | None  # None: the pass was replayed as a CUDA graph
    graph_fallbacks: int = 0  # steps so far that ran uncaptured because a capture failed

    @property
    def plan(self) -> Plan:
        """The plans of all rows, as one Plan."""
        return Plan.concat([request.plan for request in self.requests])

    @property
    def probe_cost(self) -> BatchCost:
        """The cost of the probes from which the length of each row was planned."""
        return BatchCost.stack([request.probe_cost for request in self.requests])

    @property
    def chosen(self) -> Bool[Tensor, "B L"]:
        """The masks of `prediction.canvas` that this step filled; SettingError if the step was replayed."""
        return self._details.chosen

    @property
    def prediction(self) -> Prediction:
        """The prediction of this step's forward pass; SettingError if the step was replayed."""
        return self._details.prediction

    @property
    def _details(self) -> StepDetails:
        if self.details is None:
            raise SettingError(
                "this step was replayed as a CUDA graph, which keeps no prediction; decode with use_cuda_graphs=False"
            )
        return self.details


@checks_arguments()
def decode(
    model: MaskPredictor,
    prompts: Sequence[PromptIds],
    recipe: Recipe = Recipe(),
    *,
    max_new_tokens: int | Sequence[int | None] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    stop: str | Sequence[str] | Sequence[Sequence[str]] | None = None,
    seed: int | Sequence[int] = 0,
    generators: RowGenerators | None = None,
    hooks: Hooks = Hooks(),
    exceed_max_seq_len: bool = False,
    in_chat: Collection[bool | None] = (),
    max_batch_size: int | None = None,
    plans: Sequence[tuple[Plan, TokenCost] | None] | None = None,
    use_cuda_graphs: bool = False,
) -> Iterator[Step]:
    """Decode prompts of token ids and return an iterator over all steps. Each row is decoded as if it were alone.

    Arguments that are not listed are those of `generate`; by default all prompts are decoded together.

    Args:
        max_new_tokens: a cap on the slots of each answer, whatever its length policy plans; one for all prompts, or a
            list with one per prompt (None: no cap).
        stop: strings that end an answer and its decoding; for all prompts, or a list with a list per prompt.
        generators: random generators, one per prompt, instead of `seed`.
        in_chat: whether prompts use the chat template (None: unknown); a calibration holds for one kind of prompt.
        plans: results of `plan_lengths`, one per prompt; a prompt with None is planned here.
        use_cuda_graphs: replay steps as CUDA graphs if the device and the recipe's parts allow it.
    """
    check_model(model)
    settings = DecodeSettings(hooks, exceed_max_seq_len, in_chat, max_batch_size, use_cuda_graphs)
    settings.check("decode")
    recipe = Recipe.coerce(recipe).with_sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    if generators is not None:
        expected = "lastword.RowGenerators(seeds), or None"
        check_type("decode", "generators", generators, RowGenerators, expected)
        if not isinstance(seed, int) or seed:
            raise SettingError(f"decode(seed={short_repr(seed)}) was given with generators; leave either out")
    requests = make_requests("decode", model, prompts, max_new_tokens, stop, seed, generators, plans)
    return decode_prompts(model, requests, recipe, settings)


@dataclass(frozen=True)
class DecodeSettings:
    """The options of `decode` that all prompts share, except the recipe."""

    hooks: Hooks = Hooks()
    exceed_max_seq_len: bool = False
    in_chat: Collection[bool | None] = ()
    max_batch_size: int | None = None
    use_cuda_graphs: bool = False

    def check(self, owner: str) -> None:
        """Raise an error that names `owner` for a setting that is invalid."""
        expected = "lastword.Hooks(logits=function) or lastword.Hooks(tokens=function)"
        check_type(owner, "hooks", self.hooks, Hooks, expected)
        check_prompt_options(owner, self.in_chat, self.exceed_max_seq_len)
        check_choice(owner, "use_cuda_graphs", self.use_cuda_graphs, True, False)
        if self.max_batch_size is not None:
            check_int(owner, "max_batch_size", self.max_batch_size, minimum=1)
            if self.hooks != Hooks():
                raise SettingError(
                    f"{owner}(max_batch_size={self.max_batch_size}) was given with hooks, which need all rows at "
                    "once; leave either out"
                )


def make_requests(
    owner: str,
    model: MaskPredictor,
    prompts: Sequence[PromptIds],
    max_new_tokens: int | Sequence[int | None] | None = None,
    stop: str | Sequence[str] | Sequence[Sequence[str]] | None = None,
    seed: int | Sequence[int] = 0,
    generators: RowGenerators | None = None,
    plans: Sequence[tuple[Plan, TokenCost] | None] | None = None,
) -> list[DecodeRequest]:
    """Return the request of each prompt; the arguments of `decode` that are set per prompt are checked here."""
    tokens = validate_prompts(prompts, model.ids)
    count = len(tokens)
    caps, stops = caps_per_prompt(owner, max_new_tokens, count), stops_per_prompt(owner, stop, count, model)
    seeds, plans = seeds_per_prompt(owner, seed, count), _plans_per_prompt(owner, plans, count)
    if generators is None:
        generators = RowGenerators(seeds, model.device)
    check_count("generators", generators, count)
    rows = [generators.select([row]) for row in range(count)]
    return [DecodeRequest(*values) for values in zip(tokens, rows, caps, stops, plans)]


def caps_per_prompt(owner: str, value: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return the cap of each prompt, or None where there is none."""
    values = [value] * count if value is None or isinstance(value, int) else value
    check_list(owner, "max_new_tokens", values, "a whole number, or a list with one per prompt")
    check_count("max_new_tokens", values, count)
    for cap in values:
        if cap is not None:
            check_int(owner, "max_new_tokens", cap, minimum=1, maximum=MAX_COUNT)
    return [None if cap is None else min(cap, MAX_SLOTS) for cap in values]


def stops_per_prompt(owner: str, value: Any, count: int, model: MaskPredictor) -> list[tuple[str, ...]]:
    """Return the stop strings of each prompt, given for all or per prompt."""
    values = [value] if isinstance(value, str) else () if value is None else value
    check_list(owner, "stop", values, "text, or a list of texts")
    per_prompt = [[item] if isinstance(item, str) else item for item in values]
    if all(isinstance(item, str) for item in values):
        per_prompt = [values] * count
    for texts in per_prompt:
        if not is_list(texts) or not all(isinstance(text, str) and text for text in texts):
            raise WrongTypeError(
                f"{owner}(stop={short_repr(value)}) was given; give text, a list of texts, or a list with a list of "
                "texts per prompt, none of them empty"
            )
    check_count("lists of stop strings", per_prompt, count)
    if any(per_prompt) and model.tokenizer is None:
        raise SettingError(f"{owner}(stop={short_repr(value)}) was given, which needs a model with a tokenizer")
    return [tuple(texts) for texts in per_prompt]


def seeds_per_prompt(owner: str, seed: int | Sequence[int], count: int) -> list[int]:
    """Return one seed per prompt: the given list, or consecutive seeds that begin with the given number."""
    if hasattr(seed, "__index__") and not getattr(seed, "ndim", 0):
        first = check_seed(owner, seed)
        return [check_seed(owner, first + row) for row in range(count)]
    seeds = check_seeds(owner, "seed", seed, "a whole number, or a list with one for each prompt")
    check_count("seeds", seeds, count)
    return seeds


def _plans_per_prompt(owner: str, plans: Any, count: int) -> list[tuple[Plan, TokenCost] | None]:
    """Return the given plan of each prompt with its cost, or None where there is none."""
    values = [None] * count if plans is None else plans
    check_list(owner, "plans", values, "a list of plans and their costs, one per prompt")
    for plan in values:
        if plan is not None and not (isinstance(plan, tuple) and [*map(type, plan)] == [Plan, TokenCost]):
            raise WrongTypeError(
                f"{owner}(plans=...) was given {short_repr(plan)}; give a plan with its cost, as "
                "lastword.decoding.running_batch.plan_lengths returns them, or None"
            )
    check_count("plans", values, count)
    return [*values]


def check_count(name: str, values: Sized, count: int) -> None:
    """Raise SettingError unless there is one value per prompt."""
    if len(values) != count:
        raise SettingError(f"{len(values)} {name} were given for {count} prompts; give one each")


def decode_prompts(
    model: MaskPredictor, requests: Sequence[DecodeRequest], recipe: Recipe, settings: DecodeSettings
) -> Iterator[Step]:
    """Resolve the recipe, and return an iterator over the steps of decoding the requests, as `decode` does."""
    prompts, exceed = [request.prompt_ids for request in requests], settings.exceed_max_seq_len
    recipe = resolve(recipe, model, prompts, in_chat=settings.in_chat, exceed_max_seq_len=exceed)
    batch_size, longest = min(settings.max_batch_size or len(prompts), len(prompts)), max(map(len, prompts))
    queue = PromptQueue(model, recipe, requests, batch_size, exceed)
    return decode_steps(model, recipe, queue, settings, max_batch_size=batch_size, max_prompt_tokens=longest)


def decode_steps(
    model: MaskPredictor,
    recipe: Recipe,
    queue: RequestQueue,
    settings: DecodeSettings = DecodeSettings(),
    *,
    max_batch_size: int,
    max_prompt_tokens: int,
    pool_tokens: int | None = None,
) -> Generator[Step, None, None]:
    """Decode the requests of a queue with a resolved recipe and yield every step, until no row is running.

    Prompts have at most `max_prompt_tokens` tokens. With `pool_tokens`, a cache whose passes have static
    shapes stores all rows in one pool of that many tokens; each row occupies its reserved tokens.
    """
    hooks, exceed = settings.hooks, settings.exceed_max_seq_len
    forward = Forward(model, recipe.sampling, RowGenerators([]), hook=hooks.logits, exceed_max_seq_len=exceed)
    packs_rows = getattr(model, "is_packed", False) is True
    is_static = supports_static_shapes(model.device, recipe, hooks, max_batch_size, packs_rows=packs_rows)
    layout = CanvasLayout.static(recipe, max_prompt_tokens) if is_static else CanvasLayout(max_prompt_tokens)
    batch = RunningBatch(model, recipe, queue, layout, hooks, max_batch_size=max_batch_size)
    stepper, use_graphs = Stepper(recipe, forward, hooks), settings.use_cuda_graphs
    scheduler = None
    if is_static:
        scheduler = PhaseScheduler(stepper, model, use_cuda_graphs=use_graphs, pool_tokens=pool_tokens)
    try:
        start = time.perf_counter()
        while batch.admit():
            requests, before = tuple(batch.requests), batch.state
            forward.generators = RowGenerators.concat([request.generators for request in requests])
            batch.state, details = scheduler(before, batch.phases, requests) if scheduler else stepper(before)
            batch.sync_phases()
            batch.add_seconds(time.perf_counter() - start)
            request_ids = batch.request_ids
            yield Step(
                before.clock,
                batch.state.canvas,
                requests,
                batch.state.cost,
                recipe,
                request_ids,
                batch.evict_finished(),
                details,
                scheduler.graph_fallbacks if scheduler else 0,
            )
            start = time.perf_counter()  # what the caller does with a step does not count
    finally:
        if scheduler:
            scheduler.close()
