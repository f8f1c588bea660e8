"""Scaling: how many replicas there should be, by the seconds of work that are predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

METRIC = "predicted_seconds"  # what replicas report, and the policy reads


def wanted(seconds: float, target: float, now: int, least: int, most: int) -> int:
    """Replicas for which the work in hand is `target` seconds each.

    Fewer than now only where those that stay would have less than half of that: a replica that comes and
    goes loads its weights each time.
    """
    enough = math.ceil(seconds / target)
    if enough < now:
        enough = min(now, max(enough, math.ceil(2 * seconds / target)))
    return min(max(enough, least, 1), most)


class ByPredictedSeconds:
    """Ray Serve's policy: the sum of what replicas predict, by the seconds that each should have."""

    def __init__(self, seconds: float) -> None:
        self.target = seconds

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and nothing to remember; `context` is Ray's AutoscalingContext."""
        reported: Mapping[Any, float] = (context.aggregated_metrics or {}).get(METRIC, {})
        least, most = (
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
        )
        seconds = sum(reported.values(), 0.0)
        return wanted(seconds, self.target, context.target_num_replicas, least, most), {}
