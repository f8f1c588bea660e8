"""Scheduling: predicted work of requests, the order in which they start, and the running batches."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import DecodeSettings, Step, decode_steps
from lastword.decoding.running_batch import PlannedRequest, RequestQueue
from lastword.models.base import MaskPredictor
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe

EARLY_QUANTILE = 0.05  # of the predicted length; a deadline must suffice for an answer of this length
MIN_PROMPT_TOKENS = 256  # the smallest `max_prompt_tokens` of a session
MAX_OVERTAKEN = 32  # how often later requests may start before one that does not fit
MAX_RECIPES = 256  # recipes that have averages; each temperature is another recipe
LEARNING_RATE = 0.1  # weight of the latest observation
DEFAULT_PASS_SECONDS = 0.02  # before the first pass is measured
SHORTEST_PASS_GROWTH = 1.02  # per pass, so that an old minimum is forgotten


class PredictedWork(NamedTuple):
    """The predicted length and cost of a request."""

    slots: int  # to be reserved
    tokens: float  # expected length of the answer
    min_passes: int  # forward passes of the shortest likely answer

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan) -> PredictedWork:
        """Return the predicted work of a plan with one row."""
        horizon, lengths = plan.max_horizon, plan.lengths
        keeps_length = combined_traits(recipe.length).resizes == "never"
        tokens, shortest = float(horizon), horizon if keeps_length else 1
        if lengths is not None:
            tokens = min(float(lengths.mean), float(horizon))
            shortest = horizon if keeps_length else min(int(lengths.quantile(EARLY_QUANTILE)), horizon)
        return cls(plan.reserved_slots, tokens, min_forward_passes(recipe, shortest))


class EngineLoad(NamedTuple):
    """The unfinished answers of an engine and their predicted work."""

    running: int  # answers in running batches
    waiting: int  # other unfinished answers
    seconds: float  # predicted time until all of them are finished
    tokens: float  # predicted number of tokens still to be computed


def min_forward_passes(recipe: Recipe, tokens: int) -> int:
    """Return the fewest forward passes in which the recipe can decode this number of tokens.

    A commit rule that reads the answer may fill all masks in one pass, and most unmask rules may fill a block in
    one. With an `EqualShares` schedule, `max_passes` of the unmask rule is the number of passes per block.
    """
    if recipe.commit.traits.reads_answer:
        return 1
    block = min(recipe.block or tokens, tokens)
    blocks, remainder = divmod(tokens, block)
    has_equal_shares = isinstance(getattr(recipe.unmask, "schedule", None), EqualShares)
    passes = (recipe.unmask.max_passes(block) or 1) if has_equal_shares else 1
    return blocks * min(passes, block) + (1 if remainder else 0)


class RecipeAverages(dict[Recipe, float]):
    """Exponential moving averages by recipe, 1 if unknown; the MAX_RECIPES last updated are kept."""

    def __missing__(self, recipe: Recipe) -> float:
        return 1.0

    def observe(self, recipe: Recipe, value: float) -> None:
        """Update the average of a recipe with an observed value."""
        average = self.pop(recipe, value)
        self[recipe] = average + LEARNING_RATE * (value - average)
        if len(self) > MAX_RECIPES:
            del self[next(iter(self))]


@dataclass
class WorkEstimator:
    """An estimator of the remaining work of requests, in seconds and in computed tokens.

    It learns from finished requests. Seconds are for deadlines, `Retry-After` and autoscaling; computed tokens do not
    depend on the machine or its load.
    """

    passes_per_token: RecipeAverages = field(default_factory=RecipeAverages)
    pass_intervals: RecipeAverages = field(default_factory=RecipeAverages)  # seconds from pass to pass of a row
    cost_ratio: RecipeAverages = field(default_factory=RecipeAverages)  # to those of one pass per token without a cache
    mean_interval: float = 0.0  # for recipes without an average
    shortest_pass: float = 0.0  # minimum seconds of recent passes

    def observe_pass(self, recipe: Recipe, seconds: float, interval: float) -> None:
        """Update the minimum seconds of a pass, and the average seconds between two passes of a session."""
        average = self.mean_interval or interval
        self.mean_interval = average + LEARNING_RATE * (interval - average)
        self.pass_intervals.observe(recipe, interval)
        self.shortest_pass = min(seconds, SHORTEST_PASS_GROWTH * (self.shortest_pass or seconds))

    def observe_answer(self, recipe: Recipe, predicted: PredictedWork, prompt_tokens: int, cost: TokenCost) -> None:
        """Update the averages of a recipe with the cost of a finished answer."""
        self.passes_per_token.observe(recipe, cost.forward_passes / max(predicted.tokens, 1.0))
        guess = predicted.tokens * (prompt_tokens + predicted.slots)
        self.cost_ratio.observe(recipe, cost.tokens_computed / max(guess, 1.0))

    def seconds(self, recipe: Recipe, tokens: float, passes_taken: int = 0) -> float:
        """Estimate the remaining seconds of an answer of `tokens` tokens after `passes_taken` passes."""
        passes = self.passes_per_token[recipe] * tokens
        remaining = max(passes - passes_taken, 1.0) if passes_taken else passes
        return remaining * self.pass_intervals.get(recipe, self.mean_interval or DEFAULT_PASS_SECONDS)

    def remaining_tokens(self, recipe: Recipe, tokens: float, width: int, computed: int) -> float:
        """Estimate the tokens still to be computed for an answer: at least one uncached pass, `width`."""
        return max(self.cost_ratio[recipe] * tokens * width - computed, float(width))


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits to join the running batch."""

    arrived: float  # monotonic clock, in seconds
    predicted_seconds: float  # in a full batch; of a running request, the remaining seconds
    reserved_tokens: int
    deadline: float = field(default=math.inf, kw_only=True)  # monotonic clock, in seconds
    overtaken: int = field(default=0, init=False)  # how often later requests started first


Request = TypeVar("Request", bound=QueuedRequest)


@dataclass(frozen=True)
class Scheduler:
    """A scheduler that starts the shortest predicted request first, with ageing, and keeps deadlines.

    Requests are ordered by arrival time plus `overtaking` times their predicted seconds, but at most `max_delay` of
    their timeout. A request that is shorter by d seconds can overtake only those that arrived up to `overtaking` * d
    seconds earlier, so none starves.

    A request starts before earlier ones only if these would then still meet their deadlines in order of arrival, even
    if the predicted seconds of all requests were multiplied by `headroom`.
    """

    overtaking: float = 8.0  # 0: first come, first served
    max_delay: float = 0.25  # share of the time from arrival to the deadline
    headroom: float = 2.0  # 0: deadlines do not limit overtaking
    refills: bool = True  # False: no row is refilled until the whole batch is finished

    def next_request(
        self,
        waiting: Sequence[Request],
        running: Sequence[QueuedRequest],
        free_tokens: int,
        rows: int = 1,
        now: float = 0,
    ) -> Request | None:
        """Return the request that starts next, or None if it has to wait for more free tokens.

        `rows` is the number of rows of a full batch. A request that does not fit into `free_tokens` is overtaken by
        later ones at most `MAX_OVERTAKEN` times. If no request is running, the first one starts regardless of its size.
        """
        order = sorted(self._can_start(waiting, running, rows, now), key=self._priority)
        for index, request in enumerate(order):
            if request.reserved_tokens <= free_tokens or (not running and index == 0):
                for earlier in order[:index]:
                    earlier.overtaken += 1
                return request
            if request.overtaken >= MAX_OVERTAKEN:
                return None
        return None

    def _priority(self, request: QueuedRequest) -> float:
        delay = self.overtaking * request.predicted_seconds
        return request.arrived + min(delay, self.max_delay * (request.deadline - request.arrived))

    def _can_start(
        self, waiting: Sequence[Request], running: Sequence[QueuedRequest], rows: int, now: float
    ) -> list[Request]:
        """Return the requests that can start now without making an earlier one miss its deadline.

        In order of arrival, a request ends after the predicted seconds of all requests before it, divided by the number
        of rows, and its predicted seconds. What then remains until its deadline is its slack.
        """
        ahead, slack, allowed = sum(request.predicted_seconds for request in running), math.inf, list[Request]()
        for request in sorted(waiting, key=lambda request: request.arrived):
            seconds = request.predicted_seconds
            if self.headroom * seconds / rows <= slack:
                allowed.append(request)
            if now + seconds <= request.deadline:  # otherwise it misses its deadline even if it starts now
                slack = min(slack, request.deadline - now - self.headroom * (ahead / rows + seconds))
            ahead += seconds
        return allowed


class DecodeSession(RequestQueue):
    """A running batch of one resolved recipe, for prompts of up to `max_prompt_tokens` tokens."""

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        *,
        max_batch_size: int,
        prompt_tokens: int,
        pool_tokens: int | None,
        uses_graphs: bool,
    ) -> None:
        self.recipe, self.max_batch_size, self.uses_graphs = recipe, max_batch_size, uses_graphs
        self.max_prompt_tokens = max(MIN_PROMPT_TOKENS, 1 << (prompt_tokens - 1).bit_length())
        self.row_seconds = 0.0  # the sum over its passes of seconds per row; sessions take turns by it
        self.last_pass = time.monotonic()  # end of the last pass, or the start of the session
        self.running: set[int] = set()  # ids of requests, including those added since the last step
        self._added: list[PlannedRequest] = []
        self._removed: set[int] = set()
        self._steps = decode_steps(
            model,
            recipe,
            self,
            DecodeSettings(use_cuda_graphs=uses_graphs),
            max_batch_size=max_batch_size,
            max_prompt_tokens=self.max_prompt_tokens,
            pool_tokens=pool_tokens,
        )

    def has_room(self, recipe: Recipe, prompt_tokens: int) -> bool:
        """Return whether a request with this recipe and prompt length can get a row."""
        fits = recipe == self.recipe and prompt_tokens <= self.max_prompt_tokens
        return fits and len(self.running) < self.max_batch_size

    def add(self, request: PlannedRequest) -> None:
        """Add a request, which starts in the next step; the caller has checked `has_room`."""
        self._added.append(request)
        self.running.add(request.request_id)

    def remove(self, request_id: int) -> None:
        """Remove a request; its row is freed before the next step."""
        self._added = [request for request in self._added if request.request_id != request_id]
        self._removed.add(request_id)
        self.running.discard(request_id)

    def step(self) -> Step | None:
        """Run one forward pass and return its step; None without rows. After an error, the session is unusable."""
        step = next(self._steps, None)
        self.running.difference_update(() if step is None else (row.request_id for row in step.finished))
        return step

    def close(self) -> None:
        """Free the memory of the session now; a reference cycle would keep it until garbage collection."""
        self._steps.close()

    def take(self, free_rows: int) -> Sequence[PlannedRequest]:
        started, self._added = self._added[:free_rows], self._added[free_rows:]
        return started

    def cancelled(self) -> Collection[int]:
        removed, self._removed = self._removed, set()
        return removed
