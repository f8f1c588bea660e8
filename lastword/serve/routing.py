"""A request router and an autoscaling policy for Ray Serve, both based on predicted work.

This module does not import torch, because the processes of Ray Serve that load it have no model.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

REPORT_SECONDS = 0.5  # between two reports of a replica to the router
LOAD_METRIC = "predicted_seconds"  # reported by replicas, read by the autoscaling policy
ReplicaName = TypeVar("ReplicaName")


class ReplicaReport(NamedTuple):
    """The last reported load of a replica; all values are 0 until its first report."""

    tokens: float = 0.0  # still to be computed for all unfinished answers
    tokens_per_request: float = 0.0
    requests: int = 0  # unfinished HTTP requests


def choose_replica(
    reports: Mapping[ReplicaName, ReplicaReport], routed: Mapping[ReplicaName, int], generator: random.Random
) -> ReplicaName:
    """Draw two replicas at random and return the one with less predicted work (power of two choices).

    The least loaded of all replicas would get every request until its next report. `routed` counts unfinished requests;
    those missing from a replica's report count as the average request of that replica, or of all replicas.
    """
    known = [report.tokens_per_request for report in reports.values() if report.tokens_per_request]
    default = sum(known) / len(known) if known else 1.0

    def load(name: ReplicaName) -> float:
        report = reports[name]
        unreported = max(0, routed[name] - report.requests)
        return report.tokens + unreported * (report.tokens_per_request or default)

    return min(generator.sample(list(reports), min(2, len(reports))), key=load)


class LeastLoadedRouter(RequestRouter):
    """A router for Ray Serve that uses `choose_replica`, or random replicas if `routing` is "random".

    The work of a replica is its last report plus the requests that were routed to it since.
    """

    def initialize_state(self, **settings: Any) -> None:
        """Initialize the router with the `request_router_kwargs` of the deployment."""
        self._is_random = settings.get("routing") == "random"
        self._generator = random.Random(settings.get("seed"))
        self._routed: dict[str, tuple[ReplicaID, PendingRequest]] = {}  # by id, until finished

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return groups of replicas in the order to try: the chosen one, then the others in case it is full."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas] if candidate_replicas else []
        pending_request.routing_context.should_backoff = True  # otherwise Ray retries without a pause
        candidates = {replica.replica_id: replica for replica in candidate_replicas}
        chosen = self._choose(candidates)
        self._routed[pending_request.metadata.internal_request_id] = (chosen, pending_request)
        return [[candidates.pop(chosen)], *([replica] for replica in candidates.values())]

    def _choose(self, candidates: dict[ReplicaID, RunningReplica]) -> ReplicaID:
        if self._is_random:
            return self._generator.choice(list(candidates))
        abandoned = [key for key, (_, pending) in self._routed.items() if pending.future.cancelled()]
        for key in abandoned:  # the client disconnected before the request was sent
            del self._routed[key]
        routed = Counter(replica for replica, _ in self._routed.values())
        reports = {key: ReplicaReport(**replica.routing_stats) for key, replica in candidates.items()}
        return choose_replica(reports, routed, self._generator)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record the replica that accepted the request, which may differ from the chosen one."""
        key = pending_request.metadata.internal_request_id
        if key in self._routed:
            self._routed[key] = (replica_id, pending_request)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Remove a finished request from the routed ones."""
        self._routed.pop(internal_request_id, None)


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
