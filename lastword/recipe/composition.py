"""Which parts go together. What does not is refused when a recipe is made, before the first pass.

Parts say what they do: a length policy when it resizes, a rule what it leaves out, a cache what it keeps.
Here is what follows. No part is known by its name, so one of a user's own is judged by the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from lastword.cache import Cache
from lastword.commit import CommitRule
from lastword.errors import SettingError
from lastword.length import LengthPolicy
from lastword.passes.sampling import Sampling
from lastword.unmask import UnmaskRule


@runtime_checkable
class Parts(Protocol):
    """What a recipe is made of."""

    @property
    def length(self) -> LengthPolicy: ...
    @property
    def unmask(self) -> UnmaskRule: ...
    @property
    def commit(self) -> CommitRule: ...
    @property
    def cache(self) -> Cache: ...
    @property
    def sampling(self) -> Sampling: ...


def check_composition(parts: Parts) -> None:
    """Refuse parts that would mislead or undo one another, with the reason and what to use instead."""
    for refusal in REFUSALS:
        reason = refusal(parts)
        if reason is not None:
            raise SettingError(reason)


def _two_that_grow(parts: Parts) -> str | None:
    growing = [p for p in parts.length.layers() if p.grows and not p.replans]
    if len(growing) < 2:
        return None
    outer, inner = map(_name, growing[:2])
    return (
        f"{outer} was put around {inner}; both lengthen an answer that seems to need room, so one would "
        f"repeat or undo the other: use {inner} alone, or {outer} around a policy that plans once, such "
        "as Survival()"
    )


def _growth_that_never_comes(parts: Parts) -> str | None:
    for policy in parts.length.layers():
        least, most = policy.plans_at_least, policy.grows_to
        if most is not None and least >= most:
            name = _name(policy)
            return (
                f"{name} was given a limit of {most} around a plan of {least} slots, so no row can ever "
                f"grow: raise the limit above {least}, plan fewer slots, or leave {name} out"
            )
    return None


def _work_that_is_paid_twice(parts: Parts) -> str | None:
    bounding = [policy for policy in parts.length.layers() if policy.bounds_work]
    moving = [policy for policy in parts.length.layers() if policy.resizes == "any time"]
    if not bounding or not moving:
        return None
    budget, policy = _name(bounding[0]), _name(moving[-1])
    return (
        f"{budget} was put around {policy}, which takes back slots that were paid for, so nothing can be "
        f"promised: use {policy} alone, or {budget} around a policy that plans once or resizes between "
        "blocks, such as Survival() or Reread()"
    )


def _passes_that_nobody_counts(parts: Parts) -> str | None:
    bounding = [policy for policy in parts.length.layers() if policy.bounds_work]
    if not bounding or parts.unmask.counts_passes:
        return None
    budget, rule = _name(bounding[0]), _name(parts.unmask)
    return (
        f"{budget} was given with {rule}, which follows a schedule and may idle but does not say how many "
        f"passes that takes: give {rule} a method most_passes(masks), or use a rule that has one, such as "
        "MostConfident()"
    )


def _confidence_that_means_nothing(parts: Parts) -> str | None:
    gated = [policy for policy in parts.length.layers() if policy.goes_by_confidence]
    if not gated or parts.unmask.heeds_model:
        return None
    policy, rule = _name(gated[0]), _name(parts.unmask)
    return (
        f"{policy} was given with {rule}; it resizes by how sure the model is, and {rule} writes what the "
        "model is least sure of as soon as anything else: use a rule that goes by the model, such as "
        "AboveThreshold(), or Survival(), which plans before anything is written"
    )


def _columns_a_cache_would_miss(parts: Parts) -> str | None:
    if not (parts.unmask.drops_columns and parts.cache.keeps):
        return None
    rule, cache = _name(parts.unmask), _name(parts.cache)
    return (
        f"{rule} was given with {cache}; {rule} leaves columns out of its passes, and what the cache keeps "
        "of them would be out of date: use NoCache() (on the command line --cache none), or a rule that "
        "sees every column, such as AboveThreshold()"
    )


def _a_step_that_is_not_read(parts: Parts) -> str | None:
    # The first pass sees and computes everything, whatever the cache and the rule.
    bound = [policy for policy in parts.length.layers() if policy.reads_step]
    if not bound or not (parts.cache.by_block or parts.unmask.drops_columns):
        return None
    policy, step = _name(bound[0]), bound[0].reads_step
    if parts.cache.by_block:
        what, instead = _name(parts.cache), "NoCache() or FeatureCache()"
    else:
        what, instead = (
            _name(parts.unmask),
            "a rule that sees every column, such as AboveThreshold()",
        )
    return (
        f"{policy} was given with {what}; it predicts from step {step}, and {what} may keep that pass from "
        f"reading the whole answer: use {instead}, step 0, which reads all of it, or Survival(), which "
        "probes"
    )


def _slots_ahead_that_are_not_read(parts: Parts) -> str | None:
    ahead = [policy for policy in parts.length.layers() if policy.reads_ahead]
    if not ahead or not (parts.cache.keeps_suffix or parts.unmask.drops_columns):
        return None
    policy = _name(ahead[0])
    if parts.cache.keeps_suffix:
        what, instead = _name(parts.cache), "PrefixCache(), FeatureCache() or NoCache()"
    else:
        what, instead = (
            _name(parts.unmask),
            "a rule that sees every column, such as AboveThreshold()",
        )
    return (
        f"{policy} was given with {what}; it reads the slots behind a block in the pass that completes it, "
        f"and {what} leaves them out of that pass: use {instead}, or GrowWhenFull(Survival()), which needs "
        "the block alone"
    )


def _places_that_move(parts: Parts) -> str | None:
    moving = [p for p in parts.length.layers() if p.grows or p.resizes == "any time"]
    if not parts.commit.fixes_places or not moving:
        return None
    rule, policy = _name(parts.commit), _name(moving[-1])
    return (
        f"{rule} was given slots at fixed places (literals, or an answer_start of 0 or more) with {policy}, "
        "which moves the answer's end while decoding: count its region from the end (answer_start=-5) "
        "and leave out literals, or use a length that is planned once, such as Survival()"
    )


def _masks_that_are_refused_for_ever(parts: Parts) -> str | None:
    if not parts.sampling.propose_mask or parts.unmask.follows_schedule:
        return None
    return (
        f"Sampling(propose_mask=True) was given with {_name(parts.unmask)}, which might wait for ever for a "
        "mask the model refuses to fill; use a rule on a schedule, such as MostConfident(), or leave "
        "propose_mask out"
    )


def _name(part: object) -> str:
    return type(part).__name__


REFUSALS: tuple[Callable[[Parts], str | None], ...] = (
    _two_that_grow,
    _growth_that_never_comes,
    _work_that_is_paid_twice,
    _passes_that_nobody_counts,
    _confidence_that_means_nothing,
    _columns_a_cache_would_miss,
    _a_step_that_is_not_read,
    _slots_ahead_that_are_not_read,
    _places_that_move,
    _masks_that_are_refused_for_ever,
)
