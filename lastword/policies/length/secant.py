"""Secant: search for the smallest canvas that the model considers sufficient, with a few probes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lastword.errors import SettingError
from lastword.policies.length.policy import BoundedPolicy, LengthTraits, Plan, Probe, resolved_slots
from lastword.policies.length.survival import Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Boundary, EndedBy, FirstBoundary, Interpretation
from lastword.validation import check_int, check_number, check_type, checked_field


@dataclass(frozen=True)
class Secant(BoundedPolicy):
    """Search for the smallest canvas of c masks whose own signal has P(L <= c) >= `target_probability`.

    DAEDAL's first stage makes the same search in steps of 8 slots; this policy needs a few probes. After a canvas that
    is too short, the next length is where the line through the last two probabilities reaches the target, at most four
    times as long (the secant method; an empty canvas has probability 0). The signal of a sufficient canvas shows how
    many of its slots would have been enough, and that length is tried next. The search of a row ends when an
    insufficient and a sufficient canvas differ by at most `tolerance` slots, when the sufficient one needs all of its
    slots, or after `max_probes` probes. The plan is the smallest sufficient canvas, or `limit` (unset: that of the
    model). The first canvas has `initial` slots (unset: 128).

    Cheaper than Survival's one probe of `limit` slots if answers are short. A model is more likely to consider an
    answer complete on a short canvas than on a long one, so plans are shorter than the same quantile read on `limit`
    slots: choose a higher target than for that quantile. EndedBy and TurnEnd suit padded training rows. The signal of
    packed training does not depend on the canvas length, and Auto needs the end of a long canvas: Boundary,
    FirstBoundary and Auto are rejected.
    """

    name = "secant"
    cost_summary = "one to `max_probes` probes of short canvases"
    source = "ours, for stage 1 of DAEDAL"
    default_initial = 128

    limit: int | None = checked_field(None, check_int, minimum=1)
    initial: int | None = checked_field(None, check_int, minimum=1)
    max_probes: int = checked_field(4, check_int, minimum=1)
    target_probability: float = checked_field(0.95, check_number, above=0, below=1)
    tolerance: int = checked_field(8, check_int, minimum=1)
    interpretation: Interpretation = checked_field(
        EndedBy(), check_type, Interpretation, "EndedBy(), TurnEnd() or Hazard()"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.interpretation, (Boundary, FirstBoundary, Auto)):
            raise SettingError(
                f"Secant(interpretation={self.interpretation!r}) was given, which needs a canvas that contains the "
                "whole end of the first document; Secant starts on shorter ones: use "
                f"Survival(interpretation={self.interpretation!r}), which reads one long canvas"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(max_slots=self.limit, capturable=True)

    def plan(self, probe: Probe) -> Plan:
        rows = [_Search(self) for _ in range(probe.num_rows)]
        for _ in range(self.max_probes):
            searching = torch.tensor([not row.done for row in rows])
            if not bool(searching.any()):
                break
            slots = torch.tensor([row.next for row in rows])
            signal = Survival(self.limit).signal(probe(slots, searching))
            for row in searching.nonzero()[:, 0].tolist():
                rows[row].update(self.interpretation(signal.row(row).first_slots(rows[row].next)))
        return Plan(torch.tensor([row.sufficient for row in rows]))


class _Search:
    """The search of one row, between the longest insufficient and the shortest sufficient canvas so far."""

    def __init__(self, policy: Secant) -> None:
        self._target, self._tolerance = policy.target_probability, policy.tolerance
        self.next, self.done = resolved_slots(policy, policy.initial), False
        self._insufficient, self._insufficient_probability = 0, 0.0
        # Until a probe finds a sufficient canvas, a canvas of `limit` slots counts as one.
        self.sufficient, self._probability = resolved_slots(policy, policy.limit), 1.0
        self._bracketed = False

    def update(self, lengths: LengthDistribution) -> None:
        """Choose the next canvas, given the distribution read on the canvas of `next` slots."""
        slots, probability = self.next, lengths.cumulative[0, -1].item()
        if probability >= self._target:
            needed = int(lengths.quantile(self._target))
            self.sufficient, self._probability, self._bracketed = slots, probability, True
            self.done = needed > slots - self._tolerance
            self.next = needed if needed > self._insufficient else self._interpolated()
        else:
            beyond = self._extrapolated(slots, probability)
            self._insufficient, self._insufficient_probability = slots, probability
            self.next = self._interpolated() if self._bracketed else beyond
        gap = self.sufficient - self._insufficient
        self.done = self.done or gap <= self._tolerance
        self.next = min(max(self.next, self._insufficient + 1), self.sufficient)

    def _interpolated(self) -> int:
        """Return the canvas length c at which P(L <= c), linear between the two bounds, reaches the target."""
        rise = max(self._probability - self._insufficient_probability, 1e-9)
        gap = self.sufficient - self._insufficient
        step = math.ceil((self._target - self._insufficient_probability) / rise * gap)
        return self._insufficient + min(max(step, 1), gap - 1)

    def _extrapolated(self, slots: int, probability: float) -> int:
        """Return the canvas length at which the line through the last two probabilities reaches the target."""
        slope = (probability - self._insufficient_probability) / (slots - self._insufficient)
        ahead = (self._target - probability) / slope if slope > 0 else math.inf
        return slots + math.ceil(min(max(ahead, self._tolerance), 3 * slots))
