"""An autoscaling policy for Ray Serve, based on predicted work.

This module does not import torch, because the processes of Ray Serve that load it have no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LOAD_METRIC = "predicted_seconds"  # reported by replicas, read by the autoscaling policy


class AutoscalingPolicy:
    """An autoscaling policy for Ray Serve: enough replicas for `target_load` seconds of predicted work each.

    The number falls only if each remaining replica would have at most half of `target_load`, because a replica that is
    removed and added again loads its weights again.
    """

    def __init__(self, target_load: float) -> None:
        self._target_load = target_load

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas and an empty state, given Ray's AutoscalingContext."""
        reported: Mapping[Any, float] = (context.aggregated_metrics or {}).get(LOAD_METRIC, {})
        loads, current = sum(reported.values()) / self._target_load, context.target_num_replicas
        desired = math.ceil(loads)
        if desired < current:
            desired = min(current, max(desired, math.ceil(2 * loads)))
        minimum, maximum = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return min(max(desired, minimum, 1), maximum), {}
