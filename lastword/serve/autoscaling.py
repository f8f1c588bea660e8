"""An autoscaling policy for Ray Serve, based on predicted work.

This module does not import torch, because the processes of Ray Serve that load it have no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LOAD_METRIC = "predicted_seconds"  # reported by replicas, read by the autoscaling policy


def desired_replicas(seconds: float, target_load: float, current: int, minimum: int, maximum: int) -> int:
    """Return the number of replicas, within bounds, for `target_load` seconds of predicted work each.

    It is lower than `current` only if each remaining replica would have at most half of `target_load`, because a
    replica that is removed and added again loads its weights again.
    """
    desired = math.ceil(seconds / target_load)
    if desired < current:
        desired = min(current, max(desired, math.ceil(2 * seconds / target_load)))
    return min(max(desired, minimum, 1), maximum)


class AutoscalingPolicy:
    """An autoscaling policy for Ray Serve: `desired_replicas` for the predicted seconds of all replicas."""

    def __init__(self, target_load: float) -> None:
        self._target_load = target_load

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas and an empty state, given Ray's AutoscalingContext."""
        reported: Mapping[Any, float] = (context.aggregated_metrics or {}).get(LOAD_METRIC, {})
        number = desired_replicas(
            sum(reported.values(), 0.0),
            self._target_load,
            context.target_num_replicas,
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
        )
        return number, {}
