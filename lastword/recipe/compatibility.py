"""Which parts can be combined."""

from __future__ import annotations

from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.policies.cache import Cache
from lastword.policies.commit import CommitRule
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.policies.unmask.rule import UnmaskRule


def check_compatibility(
    length: LengthPolicy, unmask: UnmaskRule, commit: CommitRule, cache: Cache, sampling: Sampling
) -> None:
    """Refuse parts that would mislead or undo one another, with the reason and what to use instead."""
    reasons = (
        _two_that_grow(length),
        _growth_that_never_comes(length),
        _work_that_is_paid_twice(length),
        _passes_that_nobody_counts(length, unmask),
        _confidence_that_means_nothing(length, unmask),
        _columns_a_cache_would_miss(unmask, cache),
        _a_step_that_is_not_read(length, unmask, cache),
        _slots_ahead_that_are_not_read(length, unmask, cache),
        _slots_that_move(length, commit),
        _masks_that_are_refused_for_ever(unmask, sampling),
    )
    for reason in reasons:
        if reason is not None:
            raise SettingError(reason)


def _two_that_grow(length: LengthPolicy) -> str | None:
    growing = [p for p in policy_layers(length) if p.traits.grows and not p.traits.replans]
    if len(growing) < 2:
        return None
    outer, inner = map(_name, growing[:2])
    return (
        f"{outer} was put around {inner}; both lengthen an answer that seems to need room, so one would "
        f"repeat or undo the other: use {inner} alone, or {outer} around a policy that plans once, such "
        "as Survival()"
    )


def _growth_that_never_comes(length: LengthPolicy) -> str | None:
    for policy in policy_layers(length):
        least, most = combined_traits(policy).min_slots, policy.traits.max_slots
        if policy.traits.grows and most is not None and least >= most:
            name = _name(policy)
            return (
                f"{name} has a limit of {most} around a plan of {least} slots, so no row can ever "
                f"grow: raise the limit above {least}, plan fewer slots, or leave {name} out"
            )
    return None


def _work_that_is_paid_twice(length: LengthPolicy) -> str | None:
    bounding = [policy for policy in policy_layers(length) if policy.traits.bounds_cost]
    moving = [policy for policy in policy_layers(length) if policy.traits.resizes == "any time"]
    if not bounding or not moving:
        return None
    budget, policy = _name(bounding[0]), _name(moving[-1])
    return (
        f"{budget} was put around {policy}, which takes back slots that were paid for, so nothing can be "
        f"promised: use {policy} alone, or {budget} around a policy that plans once or resizes between "
        "blocks, such as Survival() or Reread()"
    )


def _passes_that_nobody_counts(length: LengthPolicy, unmask: UnmaskRule) -> str | None:
    bounding = [policy for policy in policy_layers(length) if policy.traits.bounds_cost]
    if not bounding or unmask.max_passes(1) is not None:
        return None
    budget, rule = _name(bounding[0]), _name(unmask)
    return (
        f"{budget} was given with {rule}, which follows a schedule and may idle but does not say how many "
        f"passes that takes: give {rule} a method most_passes(masks), or use a rule that has one, such as "
        "MostConfident()"
    )


def _confidence_that_means_nothing(length: LengthPolicy, unmask: UnmaskRule) -> str | None:
    gated = [policy for policy in policy_layers(length) if policy.traits.uses_confidence]
    if not gated or unmask.traits.uses_model:
        return None
    policy, rule = _name(gated[0]), _name(unmask)
    return (
        f"{policy} was given with {rule}; it resizes by how sure the model is, and {rule} writes what the "
        "model is least sure of as soon as anything else: use a rule that goes by the model, such as "
        "AboveThreshold(), or Survival(), which plans before anything is written"
    )


def _columns_a_cache_would_miss(unmask: UnmaskRule, cache: Cache) -> str | None:
    if not (unmask.traits.hides_columns and cache.traits.stores_states):
        return None
    rule, kept = _name(unmask), _name(cache)
    return (
        f"{rule} was given with {kept}; {rule} leaves columns out of its passes, and what the cache keeps "
        "of them would be out of date: use NoCache() (on the command line --cache none), or a rule that "
        "sees every column, such as AboveThreshold()"
    )


def _a_step_that_is_not_read(length: LengthPolicy, unmask: UnmaskRule, cache: Cache) -> str | None:
    bound = [policy for policy in policy_layers(length) if policy.traits.reads == "one step"]
    if not bound or not (cache.traits.refreshes_by_block or unmask.traits.hides_columns):
        return None
    policy = _name(bound[0])
    if cache.traits.refreshes_by_block:
        what, instead = _name(cache), "NoCache() or FeatureCache()"
    else:
        what, instead = (
            _name(unmask),
            "a rule that sees every column, such as AboveThreshold()",
        )
    return (
        f"{policy} was given with {what}; it predicts from one step, and {what} may keep that pass from "
        f"reading the whole answer: use {instead}, step 0, which reads all of it, or Survival(), which "
        "probes"
    )


def _slots_ahead_that_are_not_read(length: LengthPolicy, unmask: UnmaskRule, cache: Cache) -> str | None:
    ahead = [policy for policy in policy_layers(length) if policy.traits.reads == "ahead"]
    if not ahead or not (cache.traits.stale_suffix or unmask.traits.hides_columns):
        return None
    policy = _name(ahead[0])
    if cache.traits.stale_suffix:
        what, instead = _name(cache), "PrefixCache(), FeatureCache() or NoCache()"
    else:
        what, instead = (
            _name(unmask),
            "a rule that sees every column, such as AboveThreshold()",
        )
    return (
        f"{policy} was given with {what}; it reads the slots behind a block in the pass that completes it, "
        f"and {what} leaves them out of that pass: use {instead}, or GrowWhenFull(Survival()), which needs "
        "the block alone"
    )


def _slots_that_move(length: LengthPolicy, commit: CommitRule) -> str | None:
    moving = [p for p in policy_layers(length) if p.traits.grows or p.traits.resizes == "any time"]
    if not commit.traits.uses_slot_indices or not moving:
        return None
    rule, policy = _name(commit), _name(moving[-1])
    return (
        f"{rule} was given slots at fixed indices (literals, or an answer_start of 0 or more) with {policy}, "
        "which moves the answer's end while decoding: count its region from the end (answer_start=-5) "
        "and leave out literals, or use a length that is planned once, such as Survival()"
    )


def _masks_that_are_refused_for_ever(unmask: UnmaskRule, sampling: Sampling) -> str | None:
    if not sampling.propose_mask or unmask.traits.follows_schedule:
        return None
    return (
        f"Sampling(propose_mask=True) was given with {_name(unmask)}, which might wait for ever for a "
        "mask the model refuses to fill; use a rule on a schedule, such as MostConfident(), or leave "
        "propose_mask out"
    )


def _name(part: object) -> str:
    return type(part).__name__
