"""Schedule: what a probe says of a job's work, and who takes the next free slot by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from lastword.decoding.planning import RESERVED_QUANTILE
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrapper import combined_traits
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe

EARLY = 0.05  # of answers are shorter than this: what a deadline is held against
MOST_PASSED = 32  # jobs that may go before one that does not fit; then nobody does
MOST_RECIPES = 256  # whose pace is known: every temperature is another, and the oldest is forgotten
LEARNING = 0.1  # weight of the newest observation
GUESSED = 0.02  # seconds a pass, before the first one
FORGETTING = 1.02  # by which the shortest pass is forgotten, pass by pass


class Predicted(NamedTuple):
    """What one probe says of a job's work."""

    slots: int  # of the canvas, or as many more as nine of ten such answers take
    tokens: float  # expected
    fewest: int  # passes that the shortest likely answer takes

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan) -> Predicted:
        """From the plan of one row."""
        horizon, lengths = plan.max_horizon, plan.lengths
        # A canvas that keeps its length is filled; how short another may become the probe says, or nobody.
        keeps = combined_traits(recipe.length).resizes == "never"
        tokens, early = float(horizon), horizon if keeps else 1
        if lengths is not None:
            tokens = min(float(lengths.mean), float(horizon))
            early = horizon if keeps else min(int(lengths.quantile(EARLY)), horizon)
        return cls(plan.reserved(RESERVED_QUANTILE), tokens, fewest_passes(recipe, early))


def fewest_passes(recipe: Recipe, tokens: int) -> int:
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
class Pace:
    """How fast answers are made: passes a token by recipe, and seconds a pass, learnt on the way."""

    passes_a_token: dict[Recipe, float] = field(default_factory=dict)
    seconds_a_pass: float = 0.0
    shortest_pass: float = 0.0  # seconds; of those not long ago

    def learn(self, recipe: Recipe, tokens: float, passes: int) -> None:
        """From an answer that is done, and the tokens that were predicted."""
        seen = passes / max(tokens, 1.0)
        before = self.passes_a_token.pop(recipe, seen)
        self.passes_a_token[recipe] = before + LEARNING * (seen - before)
        if len(self.passes_a_token) > MOST_RECIPES:
            del self.passes_a_token[next(iter(self.passes_a_token))]

    def passed(self, seconds: float) -> None:
        """From a pass."""
        before = self.seconds_a_pass or seconds
        self.seconds_a_pass = before + LEARNING * (seconds - before)
        self.shortest_pass = min(seconds, FORGETTING * (self.shortest_pass or seconds))

    def seconds(self, recipe: Recipe, tokens: float, taken: int = 0) -> float:
        """How long so many tokens are likely to take with a slot, of which passes were taken already."""
        passes = self.passes_a_token.get(recipe, 1.0) * tokens
        left = max(passes - taken, 1.0) if taken else passes  # who is not done takes one more at least
        return left * (self.seconds_a_pass or GUESSED)


Job = TypeVar("Job")


@dataclass(eq=False)
class Waiting(Generic[Job]):
    """A job that waits for a slot."""

    job: Job
    arrived: float  # seconds
    seconds: float  # that it is predicted to take
    columns: int  # that it reserves
    passed: int = 0  # jobs that went before it because it did not fit


@dataclass(frozen=True)
class Schedule:
    """Who takes free slots, and when."""

    # A job is overtaken by shorter ones that come up to so many times the difference later.
    overtaking: float = 8.0  # 0: first come, first served
    refills: bool = True  # else free slots wait until nobody is at work: whole batches, as others have them

    def first(self, waiting: Sequence[Waiting[Job]], free: int, *, alone: bool) -> Waiting[Job] | None:
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
            if chosen.passed >= MOST_PASSED:
                return None
        return None
