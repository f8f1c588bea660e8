"""The request router of Ray Serve: a request goes to the replica with less predicted work."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

REPLICA_ARGUMENT = "to"  # the argument by which a call names its replica


class LeastLoadedRouter(RequestRouter):
    """A request goes to the one of two replicas with less predicted work, or to any one, at random.

    A replica's work is what it reported, and what it was handed since. A call that says `to` goes there.
    """

    def initialize_state(self, **settings: Any) -> None:
        """As `request_router_kwargs` say."""
        self._random = settings.get("routing") == "random"
        self._draw = random.Random(settings.get("seed"))
        self._handed: dict[str, tuple[ReplicaID, PendingRequest]] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of one: who takes it, then the others, for when that one is full."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # else Ray asks again without a pause
        candidates = {own.replica_id: own for own in candidate_replicas}
        named = pending_request.kwargs.get(REPLICA_ARGUMENT)
        if named is not None:
            return [[own] for own in candidate_replicas if own.replica_id.unique_id == named]
        first = self._choose(candidates)
        if first is None:
            return []
        self._handed[pending_request.metadata.internal_request_id] = (first, pending_request)
        return [[candidates[first]], *([own] for key, own in candidates.items() if key != first)]

    def _choose(self, candidates: dict[ReplicaID, RunningReplica]) -> ReplicaID | None:
        from lastword.serve.scheduler import (
            ReplicaReport,
            less_loaded_of_two,
            mean_request_tokens,
            predicted_load,
        )

        if not candidates:
            return None
        if self._random:
            return self._draw.choice(list(candidates))
        reports = {key: ReplicaReport.of(own.routing_stats) for key, own in candidates.items()}
        each, in_hand = mean_request_tokens(list(reports.values())), self._in_hand()
        work = {key: predicted_load(own, in_hand.get(key, 0), each) for key, own in reports.items()}
        return less_loaded_of_two(work, self._draw)

    def _in_hand(self) -> dict[ReplicaID, int]:
        """How many requests each replica was handed that are not over."""
        left = [own for own, (_, pending) in self._handed.items() if pending.future.cancelled()]
        for own in left:  # whoever asked has left before it was sent
            del self._handed[own]
        count: dict[ReplicaID, int] = {}
        for key, _ in self._handed.values():
            count[key] = count.get(key, 0) + 1
        return count

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """It may be another replica that took it."""
        own = pending_request.metadata.internal_request_id
        if own in self._handed:
            self._handed[own] = (replica_id, pending_request)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It is over, whatever it came to."""
        self._handed.pop(internal_request_id, None)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Who runs, and what each reported."""
        from lastword.serve.ray import record_reports
        from lastword.serve.scheduler import ReplicaReport

        super().update_replicas(replicas)
        record_reports(
            self.app_name,
            {own.replica_id.unique_id: ReplicaReport.of(own.routing_stats) for own in replicas},
        )
