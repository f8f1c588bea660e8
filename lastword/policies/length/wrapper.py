"""Length policies that wrap another policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan, Probe
from lastword.policies.length.survival import Survival
from lastword.validation import check_type

MAX_WRAPPERS = 8  # there are three wrappers, and none is needed twice


@dataclass(frozen=True)
class Wrapper(LengthPolicy):
    """Plans as `length` does and has its say after `length` had its own.

    It carries no state of its own: the state is that of `length`, which the loop may also ask alone.
    """

    length: LengthPolicy = Survival()

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_type(
            name,
            "length",
            self.length,
            LengthPolicy,
            "a length policy, such as Survival() or Fixed()",
        )
        if sum(1 for _ in policy_layers(self)) > MAX_WRAPPERS:
            raise SettingError(
                f"{name} was put around {MAX_WRAPPERS} policies; no more than {MAX_WRAPPERS} go together"
            )

    def resolved(self, limits: ModelLimits) -> LengthPolicy:
        return replace(self, length=self.length.resolved(limits))

    def plan(self, probe: Probe) -> Plan:
        return self.length.plan(probe)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        return self.length.revise(canvas, prediction, clock, state)


def policy_layers(policy: LengthPolicy) -> Iterator[LengthPolicy]:
    """A policy and those it wraps, from the outside in; the last one plans."""
    yield policy
    if isinstance(policy, Wrapper):
        yield from policy_layers(policy.length)


def combined_traits(policy: LengthPolicy) -> LengthTraits:
    """What holds for a policy together with those it wraps."""
    return reduce(LengthTraits.with_inner, (layer.traits for layer in policy_layers(policy)))
