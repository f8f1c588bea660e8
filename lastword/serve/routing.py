"""Routing of requests to replicas and their number, both by predicted work; loaded by Ray Serve.

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
    """The predicted work of a replica, as last reported; without values if it has not reported yet."""

    tokens: float = 0.0  # to compute for all unfinished answers
    tokens_per_request: float = 0.0
    requests: int = 0  # unfinished HTTP requests


def choose_replica(
    reports: Mapping[ReplicaName, ReplicaReport], routed: Mapping[ReplicaName, int], generator: random.Random
) -> ReplicaName:
    """Return the replica with less predicted work of two that are drawn at random (power of two choices).

    The least loaded of all would get every request between two reports. Requests that were routed to a replica
    and that its report does not count yet are as large as its others, or as those of all replicas.
    """
    known = [report.tokens_per_request for report in reports.values() if report.tokens_per_request]
    default = sum(known) / len(known) if known else 1.0

    def load(name: ReplicaName) -> float:
        report = reports[name]
        unreported = max(0, routed[name] - report.requests)
        return report.tokens + unreported * (report.tokens_per_request or default)

    return min(generator.sample(list(reports), min(2, len(reports))), key=load)


class LeastLoadedRouter(RequestRouter):
    """Routes a request to the one of two replicas with less predicted work, or to a random one.

    The work of a replica is what it reported last and what was routed to it since.
    """

    def initialize_state(self, **settings: Any) -> None:
        """Take the `request_router_kwargs` of the deployment."""
        self._is_random = settings.get("routing") == "random"
        self._generator = random.Random(settings.get("seed"))
        self._routed: dict[str, tuple[ReplicaID, PendingRequest]] = {}  # unfinished requests

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, then the others for the case that it is full."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas] if candidate_replicas else []
        pending_request.routing_context.should_backoff = True  # else Ray retries without a pause
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
        """Record the replica that took the request, which may be another one."""
        key = pending_request.metadata.internal_request_id
        if key in self._routed:
            self._routed[key] = (replica_id, pending_request)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Forget a finished request."""
        self._routed.pop(internal_request_id, None)


def desired_replicas(seconds: float, target_load: float, current: int, minimum: int, maximum: int) -> int:
    """Return the number of replicas with `target_load` seconds of predicted work each.

    It is lower than `current` only if fewer replicas would have less than half of that each, because a
    replica that is removed and added again loads its weights each time.
    """
    desired = math.ceil(seconds / target_load)
    if desired < current:
        desired = min(current, max(desired, math.ceil(2 * seconds / target_load)))
    return min(max(desired, minimum, 1), maximum)


class AutoscalingPolicy:
    """Ray Serve's autoscaling policy: the predicted seconds of all replicas, divided by `target_load`."""

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
