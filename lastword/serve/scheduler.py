"""Scheduling: predicted work of requests, the order in which they start, and the running batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import Step, decode_steps
from lastword.decoding.running_batch import RESERVED_QUANTILE, PlannedRequest, RequestQueue
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe

EARLY_QUANTILE = 0.05  # deadlines are compared with this quantile of the predicted length
MIN_PROMPT_TOKENS = 256  # room for the prompt in every row
MAX_OVERTAKEN = 32  # times that others may start before a request that does not fit
MAX_RECIPES = 256  # recipes with an average; each temperature is another recipe
LEARNING_RATE = 0.1  # weight of the latest observation
DEFAULT_PASS_SECONDS = 0.02  # until the first pass
SHORTEST_PASS_GROWTH = 1.02  # per pass, so that an old minimum is forgotten


class PredictedWork(NamedTuple):
    """Predicted work of a request."""

    slots: int  # to reserve
    tokens: float  # expected number
    min_passes: int  # of the shortest likely answer

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan) -> PredictedWork:
        """Return the predicted work of a plan of one row."""
        horizon, lengths = plan.max_horizon, plan.lengths
        keeps_length = combined_traits(recipe.length).resizes == "never"
        tokens, shortest = float(horizon), horizon if keeps_length else 1
        if lengths is not None:
            tokens = min(float(lengths.mean), float(horizon))
            shortest = horizon if keeps_length else min(int(lengths.quantile(EARLY_QUANTILE)), horizon)
        return cls(plan.reserved(RESERVED_QUANTILE), tokens, min_forward_passes(recipe, shortest))


class EngineLoad(NamedTuple):
    """The work of an engine."""

    running: int  # answers in running batches
    waiting: int  # other unfinished answers
    seconds: float  # predicted to finish all of them
    tokens: float  # predicted to compute for them


def min_forward_passes(recipe: Recipe, tokens: int) -> int:
    """Return the fewest forward passes in which the recipe can decode this number of tokens.

    A commit rule that reads the answer may fill all of it in one pass, and most unmask rules may fill a
    block in one. Equal shares fill as many tokens per pass as they declare, but at least one.
    """
    if recipe.commit.traits.reads_answer:
        return 1
    block = min(recipe.block or tokens, tokens)
    blocks, remainder = divmod(tokens, block)
    has_equal_shares = isinstance(getattr(recipe.unmask, "schedule", None), EqualShares)
    passes = (recipe.unmask.max_passes(block) or 1) if has_equal_shares else 1
    return blocks * min(passes, block) + (1 if remainder else 0)


class RecipeAverages(dict[Recipe, float]):
    """An exponential moving average per recipe, 1 at first; the least recently updated recipe is forgotten."""

    def __missing__(self, recipe: Recipe) -> float:
        return 1.0

    def observe(self, recipe: Recipe, value: float) -> None:
        """Add an observation."""
        average = self.pop(recipe, value)
        self[recipe] = average + LEARNING_RATE * (value - average)
        if len(self) > MAX_RECIPES:
            del self[next(iter(self))]


@dataclass
class WorkEstimator:
    """Estimates the remaining work of requests from finished ones, in seconds and in computed tokens.

    Computed tokens do not depend on the machine or its load, so they compare replicas; seconds are for
    deadlines and `Retry-After`.
    """

    passes_per_token: RecipeAverages = field(default_factory=RecipeAverages)
    cost_ratio: RecipeAverages = field(default_factory=RecipeAverages)  # to `uncached_tokens`
    pass_seconds: float = 0.0
    shortest_pass: float = 0.0  # seconds; among recent passes

    def observe_pass(self, seconds: float) -> None:
        """Update the seconds per pass."""
        average = self.pass_seconds or seconds
        self.pass_seconds = average + LEARNING_RATE * (seconds - average)
        self.shortest_pass = min(seconds, SHORTEST_PASS_GROWTH * (self.shortest_pass or seconds))

    def observe_answer(self, recipe: Recipe, predicted: PredictedWork, prompt_tokens: int, cost: TokenCost) -> None:
        """Update the averages of a recipe with a finished answer."""
        self.passes_per_token.observe(recipe, cost.forward_passes / max(predicted.tokens, 1.0))
        guess = uncached_tokens(predicted.tokens, prompt_tokens + predicted.slots)
        self.cost_ratio.observe(recipe, cost.tokens_computed / max(guess, 1.0))

    def seconds(self, recipe: Recipe, tokens: float, passes_taken: int = 0) -> float:
        """Estimate the remaining seconds of an answer after `passes_taken` passes."""
        passes = self.passes_per_token[recipe] * tokens
        remaining = max(passes - passes_taken, 1.0) if passes_taken else passes
        return remaining * (self.pass_seconds or DEFAULT_PASS_SECONDS)

    def remaining_tokens(self, recipe: Recipe, tokens: float, width: int, computed: int) -> float:
        """Estimate the tokens still to compute for an answer in a row of this width; at least one pass."""
        return max(self.cost_ratio[recipe] * uncached_tokens(tokens, width) - computed, float(width))


def uncached_tokens(tokens: float, width: int) -> float:
    """Return the tokens computed by an answer with one pass per token and without a cache."""
    return tokens * width


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits to join the running batch."""

    arrived: float  # seconds
    predicted_seconds: float
    reserved_tokens: int
    overtaken: int = field(default=0, init=False)  # times that others started first because it did not fit


Request = TypeVar("Request", bound=QueuedRequest)


@dataclass(frozen=True)
class Scheduler:
    """Shortest predicted request first, with ageing.

    Requests are ordered by arrival time plus `overtaking` times their predicted seconds, so a request that
    arrives later by more than that multiple of the difference does not overtake, and none starves.
    """

    overtaking: float = 8.0  # 0: first come, first served
    refills: bool = True  # False: free rows wait until the whole batch is finished

    def next_request(self, waiting: Sequence[Request], free_tokens: int, *, batch_is_empty: bool) -> Request | None:
        """Return the request that starts next, or None if it has to wait for more free tokens.

        A request that needs more tokens than are free lets others start first, at most `MAX_OVERTAKEN`
        times. If the batch is empty, the first request starts whatever it needs.
        """
        order = sorted(waiting, key=lambda item: item.arrived + self.overtaking * item.predicted_seconds)
        for index, request in enumerate(order):
            if request.reserved_tokens <= free_tokens or (batch_is_empty and index == 0):
                for earlier in order[:index]:
                    earlier.overtaken += 1
                return request
            if request.overtaken >= MAX_OVERTAKEN:
                return None
        return None


class DecodeSession(RequestQueue):
    """A running batch of one resolved recipe, for prompts of up to `max_prompt_tokens` tokens."""

    def __init__(
        self, model: MaskPredictor, recipe: Recipe, *, max_batch_size: int, prompt_tokens: int, pool_tokens: int | None
    ) -> None:
        self.recipe, self.max_batch_size = recipe, max_batch_size
        self.max_prompt_tokens = max(MIN_PROMPT_TOKENS, 1 << (prompt_tokens - 1).bit_length())
        self.row_seconds = 0.0  # time of its passes divided by their rows, to share time between sessions
        self.running: set[int] = set()  # ids of requests, including those added since the last step
        self._added: list[PlannedRequest] = []
        self._removed: set[int] = set()
        self._steps = decode_steps(
            model,
            recipe,
            self,
            max_batch_size=max_batch_size,
            max_prompt_tokens=self.max_prompt_tokens,
            use_cuda_graphs=True,
            pool_tokens=pool_tokens,
        )

    def has_room(self, recipe: Recipe, prompt_tokens: int) -> bool:
        """Return whether a row of this recipe and prompt length can join."""
        fits = recipe == self.recipe and prompt_tokens <= self.max_prompt_tokens
        return fits and len(self.running) < self.max_batch_size

    def add(self, request: PlannedRequest) -> None:
        """Start a request in the next step; `has_room` must hold."""
        self._added.append(request)
        self.running.add(request.request_id)

    def remove(self, request_id: int) -> None:
        """Free the row of a request before the next step."""
        self._added = [request for request in self._added if request.request_id != request_id]
        self._removed.add(request_id)
        self.running.discard(request_id)

    def step(self) -> Step | None:
        """Run one forward pass; None if no row is running. An error ends the session."""
        step = next(self._steps, None)
        self.running.difference_update(() if step is None else (row.request_id for row in step.finished))
        return step

    def close(self) -> None:
        """Free the memory of the session, which a reference cycle would keep."""
        self._steps.close()

    def take(self, free_rows: int) -> Sequence[PlannedRequest]:
        started, self._added = self._added[:free_rows], self._added[free_rows:]
        return started

    def cancelled(self) -> Collection[int]:
        removed, self._removed = self._removed, set()
        return removed
