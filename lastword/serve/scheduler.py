"""Scheduling: cost estimates of requests, their order, and the replica that takes them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from lastword.decoding.planning import RESERVED_QUANTILE
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe

EARLY_QUANTILE = 0.05  # of answers are shorter than this: what a deadline is held against
MAX_OVERTAKEN = 32  # jobs that may go before one that does not fit; then nobody does
MAX_RECIPES = 256  # whose pace is known: every temperature is another, and the oldest is forgotten
LEARNING_RATE = 0.1  # weight of the newest observation
DEFAULT_PASS_SECONDS = 0.02  # seconds a pass, before the first one
MINIMUM_GROWTH = 1.02  # by which the shortest pass is forgotten, pass by pass


class PredictedWork(NamedTuple):
    """What one probe says of a job's work."""

    slots: int  # of the canvas, or as many more as nine of ten such answers take
    tokens: float  # expected
    fewest: int  # passes that the shortest likely answer takes

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan) -> PredictedWork:
        """From the plan of one row."""
        horizon, lengths = plan.max_horizon, plan.lengths
        # A canvas that keeps its length is filled; how short another may become the probe says, or nobody.
        keeps = combined_traits(recipe.length).resizes == "never"
        tokens, early = float(horizon), horizon if keeps else 1
        if lengths is not None:
            tokens = min(float(lengths.mean), float(horizon))
            early = horizon if keeps else min(int(lengths.quantile(EARLY_QUANTILE)), horizon)
        return cls(plan.reserved(RESERVED_QUANTILE), tokens, min_forward_passes(recipe, early))


def min_forward_passes(recipe: Recipe, tokens: int) -> int:
    """The fewest passes that so many tokens can take.

    A way to commit an answer may fill all of it in one pass, and a rule a block; equal shares fill as many
    as they say, and no pass fewer than one, however slow they are.
    """
    if recipe.commit.traits.reads_answer:
        return 1
    block = min(recipe.block or tokens, tokens)
    blocks, rest = divmod(tokens, block)
    equal = isinstance(getattr(recipe.unmask, "schedule", None), EqualShares)
    passes = (recipe.unmask.max_passes(block) or 1) if equal else 1
    return blocks * min(passes, block) + (1 if rest else 0)


@dataclass
class PaceEstimator:
    """How fast answers are made: passes a token by recipe, and seconds a pass, learnt on the way."""

    passes_a_token: dict[Recipe, float] = field(default_factory=dict)
    seconds_a_pass: float = 0.0
    shortest_pass: float = 0.0  # seconds; of those not long ago

    def learn(self, recipe: Recipe, tokens: float, passes: int) -> None:
        """From an answer that is done, and the tokens that were predicted."""
        seen = passes / max(tokens, 1.0)
        before = self.passes_a_token.pop(recipe, seen)
        self.passes_a_token[recipe] = before + LEARNING_RATE * (seen - before)
        if len(self.passes_a_token) > MAX_RECIPES:
            del self.passes_a_token[next(iter(self.passes_a_token))]

    def passed(self, seconds: float) -> None:
        """From a pass."""
        before = self.seconds_a_pass or seconds
        self.seconds_a_pass = before + LEARNING_RATE * (seconds - before)
        self.shortest_pass = min(seconds, MINIMUM_GROWTH * (self.shortest_pass or seconds))

    def seconds(self, recipe: Recipe, tokens: float, taken: int = 0) -> float:
        """How long so many tokens are likely to take with a slot, of which passes were taken already."""
        passes = self.passes_a_token.get(recipe, 1.0) * tokens
        left = max(passes - taken, 1.0) if taken else passes  # who is not done takes one more at least
        return left * (self.seconds_a_pass or DEFAULT_PASS_SECONDS)


Item = TypeVar("Item")


@dataclass(eq=False)
class QueuedRequest(Generic[Item]):
    """A job that waits for a slot."""

    job: Item
    arrived: float  # seconds
    seconds: float  # that it is predicted to take
    columns: int  # that it reserves
    passed: int = 0  # jobs that went before it because it did not fit


@dataclass(frozen=True)
class Scheduler:
    """Who takes free slots, and when."""

    # A job is overtaken by shorter ones that come up to so many times the difference later.
    overtaking: float = 8.0  # 0: first come, first served
    refills: bool = True  # else free slots wait until nobody is at work: whole batches, as others have them

    def first(
        self, waiting: Sequence[QueuedRequest[Item]], free: int, *, alone: bool
    ) -> QueuedRequest[Item] | None:
        """Who goes next, given the columns that are free: the shortest predicted, with ageing.

        Jobs stand in the order of the time they came plus a multiple of the seconds they are predicted to
        take: who comes later by more than that multiple of the difference does not overtake, so nobody
        starves. A job that needs more columns than are free lets others go before it, so many times. With
        nobody at work (`alone`) the first one goes, whatever it needs.
        """
        order = sorted(waiting, key=lambda own: own.arrived + self.overtaking * own.seconds)
        for index, chosen in enumerate(order):
            if chosen.columns <= free or (alone and index == 0):
                for before in order[:index]:
                    before.passed += 1
                return chosen
            if chosen.passed >= MAX_OVERTAKEN:
                return None
        return None


@dataclass
class TokenCostEstimator:
    """Columns of answers by what was guessed of them: a pass a token, all columns of the row in each.

    Unlike seconds they say nothing of the machine, nor of who shared the passes: what replicas have before
    them can be compared by them.
    """

    shares: dict[Recipe, float] = field(default_factory=dict)

    def learn(self, recipe: Recipe, uncached_tokens: float, columns: int) -> None:
        """From an answer that is done."""
        seen = columns / max(uncached_tokens, 1.0)
        before = self.shares.pop(recipe, seen)
        self.shares[recipe] = before + LEARNING_RATE * (seen - before)
        if len(self.shares) > MAX_RECIPES:
            del self.shares[next(iter(self.shares))]

    def left(self, recipe: Recipe, tokens: float, width: int, taken: int) -> float:
        """Columns still to come of so many tokens in rows of such a width: those of a pass at least."""
        return max(self.shares.get(recipe, 1.0) * uncached_tokens(tokens, width) - taken, float(width))


def uncached_tokens(tokens: float, width: int) -> float:
    """Columns of an answer that takes a pass a token and no cache."""
    return tokens * width


ReplicaName = TypeVar("ReplicaName")


@dataclass(frozen=True)
class ReplicaReport:
    """Predicted work of a replica, as it said a moment ago. Nothing is known of one that said nothing yet."""

    columns: float = 0.0  # that answers with a slot and those that wait are predicted to take yet
    each: float = 0.0  # of them by request
    asking: int = 0  # requests in hand
    working: int = 0  # answers that have a slot
    waiting: int = 0  # answers that have none
    seconds: float = 0.0  # that all of it is predicted to take

    def to_data(self) -> dict[str, Any]:
        """As plain data, which Ray carries."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> ReplicaReport:
        """From what Ray carried; empty: the replica said nothing yet."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def predicted_load(report: ReplicaReport, in_hand: int, default: float) -> float:
    """Columns before a replica that was handed so many requests which are not answered.

    Those that its report does not count yet are taken to be as long as its others, or as `default`.
    """
    return report.columns + max(0, in_hand - report.asking) * (report.each or default)


def less_loaded_of_two(work: Mapping[ReplicaName, float], draw: random.Random) -> ReplicaName:
    """Of two replicas drawn at random the one with less work: power of two choices.

    The least of all would send everything that comes between two reports to the same one.
    """
    drawn = draw.sample(list(work), min(2, len(work)))
    return min(drawn, key=lambda own: work[own])


def mean_request_tokens(reports: Sequence[ReplicaReport]) -> float:
    """Columns that a request is taken to need where nothing is known of it."""
    known = [report.each for report in reports if report.each]
    return sum(known) / len(known) if known else 1.0
