"""Secant: the smallest canvas of which the model says that its answer fits, in a few probes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lastword.errors import SettingError
from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    check_optional_slots,
    resolved_slots,
)
from lastword.policies.length.survival import Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Boundary, EndedBy, FirstBoundary, Interpretation
from lastword.validation import check_int, check_number, check_type

DEFAULT_INITIAL = 128  # slots of the first canvas


@dataclass(frozen=True)
class Secant(LengthPolicy):
    """Look for the smallest canvas c with P(L <= c) >= `enough`, as a canvas of c masks itself says.

    What DAEDAL's first stage looks for in steps of 8 slots, found in a few: a canvas that the model
    thinks sufficient. A canvas too short is followed by the one where the line through the last
    two readings reaches `enough`, at most four times as long (the secant method; an empty canvas
    reads 0). A canvas that is sufficient says itself at which slot it would have been, and that one
    is tried next. Between an insufficient and a sufficient canvas the search goes on until they are
    `within` slots of each other, the sufficient one says that it needs all of its slots, or
    `probes` are spent. The plan is the smallest canvas that was found sufficient, or `limit`.
    Without numbers the first canvas has 128 slots and the limit is what the model is made for.

    A short canvas rather says that the answer fits than a long one does, so plans come out shorter
    than the same quantile read on `limit` slots: ask for more than you would there.

    It costs less than Survival's one probe of `limit` slots where answers are short, and reads
    canvases as short as the one that is decoded on. `reading` says what the end signal is taken for:
    EndedBy and TurnEnd suit padded training rows. What a packed model says does not depend on the
    canvas, so there is nothing to search for, and Auto judges by an end that a short canvas does not
    have: Boundary, FirstBoundary and Auto are refused. Each row has a search of its own.
    """

    name: ClassVar[str] = "secant"
    cost_summary: ClassVar[str] = "one to `probes` probes, each as long as the canvas it tries"
    source: ClassVar[str] = "ours, for stage 1 of DAEDAL (Li et al., 2025, arXiv 2508.00819)"

    limit: int | None = None
    initial: int | None = None
    max_probes: int = 4
    target_probability: float = 0.95
    tolerance: int = 8
    interpretation: Interpretation = EndedBy()

    def __post_init__(self) -> None:
        for name in ("limit", "initial"):
            check_optional_slots("Secant", name, getattr(self, name))
        for name in ("max_probes", "tolerance"):
            check_int("Secant", name, getattr(self, name), minimum=1)
        check_number("Secant", "target_probability", self.target_probability, above=0, below=1)
        check_type(
            "Secant",
            "interpretation",
            self.interpretation,
            Interpretation,
            "EndedBy(), TurnEnd() or Hazard()",
        )
        if isinstance(self.interpretation, (Boundary, FirstBoundary, Auto)):
            raise SettingError(
                f"Secant(interpretation={self.interpretation!r}) was given, which reads a canvas that "
                "shows all of the first document's end; a search begins on shorter ones: use "
                f"Survival(interpretation={self.interpretation!r}), which reads one long canvas"
            )
        if self.initial is not None and self.limit is not None and self.initial > self.limit:
            raise SettingError(
                f"Secant(initial={self.initial}, limit={self.limit}) was given; the first canvas must not "
                "be longer than the limit: raise the limit or start with fewer slots"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(max_slots=self.limit, capturable=True)

    def resolved(self, limits: ModelLimits) -> Secant:
        limit = max(limits.resolve(self.limit), 0 if self.limit else limits.resolve(self.initial or 1))
        initial = min(DEFAULT_INITIAL, limit) if self.initial is None else limits.resolve(self.initial)
        return replace(self, limit=limit, initial=initial)

    def plan(self, probe: Probe) -> Plan:
        rows = [_Search(self) for _ in range(probe.num_rows)]
        for _ in range(self.max_probes):
            asking = torch.tensor([not row.done for row in rows])
            if not bool(asking.any()):
                break
            slots = torch.tensor([row.next for row in rows])
            prediction = probe(slots, asking)
            signal = Survival(self.limit).signal(prediction)
            for row in asking.nonzero()[:, 0].tolist():
                tried = rows[row].next
                rows[row].tell(self.interpretation(signal.row(row).first_slots(tried)))
        return Plan(torch.tensor([row.sufficient for row in rows]))


class _Search:
    """One row's: the longest canvas that was too short, the shortest that was not, the next to try."""

    def __init__(self, policy: Secant) -> None:
        self._policy = policy
        self._short, self._said = 0, 0.0  # a canvas too short, and what it said
        self.sufficient, self._sure = (
            resolved_slots(policy, policy.limit),
            1.0,
        )  # until proven, the limit must do
        self._proven = False
        self.next, self.done = resolved_slots(policy, policy.initial), False

    def tell(self, lengths: LengthDistribution) -> None:
        """What the canvas of `next` slots says of itself."""
        policy, slots = self._policy, self.next
        said = lengths.cumulative[0, -1].item()
        if said >= policy.target_probability:
            needed = int(lengths.quantile(policy.target_probability))
            self.sufficient, self._sure, self._proven = slots, said, True
            self.done = needed > slots - policy.tolerance
            self.next = needed if needed > self._short else self._between()
        else:
            beyond = self._beyond(slots, said)
            self._short, self._said = slots, said
            self.next = self._between() if self._proven else beyond
        gap = self.sufficient - self._short
        self.done = self.done or gap <= policy.tolerance
        self.next = min(max(self.next, self._short + 1), self.sufficient)

    def _between(self) -> int:
        """Where the line between the two readings reaches `enough`."""
        share = (self._policy.target_probability - self._said) / max(self._sure - self._said, 1e-9)
        gap = self.sufficient - self._short
        return self._short + min(max(math.ceil(share * gap), 1), gap - 1)

    def _beyond(self, slots: int, said: float) -> int:
        """Where the line through the last two readings reaches it, on canvases not yet tried."""
        rise = (said - self._said) / (slots - self._short)
        ahead = (self._policy.target_probability - said) / rise if rise > 0 else math.inf
        return slots + math.ceil(min(max(ahead, self._policy.tolerance), 3 * slots))
