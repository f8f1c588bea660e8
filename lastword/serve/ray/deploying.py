"""Deployed: the replicas as Ray Serve is told of them, from asking for them to giving them back."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from typing import Any

from lastword.errors import SettingError
from lastword.serve.ray.replica import Made, Replica
from lastword.serve.ray.settings import Replicas

REPORTING = 0.5  # seconds between two reports of a replica
HEALTH = 2.0  # seconds between two looks at a replica
SPARE = 32  # requests beyond queue and slots that a replica takes, to refuse them itself
LOOK = 0.2  # seconds
TRIES = 2  # of a replica to be made, before all are given up
DEPLOYMENT = "replica"

# Ray imports them itself.
ROUTER = "lastword.serve.ray.router:LeastWork"
POLICY = "lastword.serve.ray.scaling:ByPredictedSeconds"


class Deployed:
    """Replicas of one application; nothing is asked for before `deploy`."""

    def __init__(self, ray: Any, made: Made, replicas: Replicas) -> None:
        self._ray, self._made, self._replicas = ray, made, replicas
        self.application = "lastword-" + re.sub(r"[^A-Za-z0-9_-]", "-", made.name)
        self._asked_for = False
        self._gpus = replicas.gpus
        if self._gpus is None:
            some = made.source.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
            self._gpus = 1.0 if some else 0.0

    def check_room(self) -> None:
        """Refuse what this cluster could not hold if nobody else used it."""
        wanted = {"CPU": self._replicas.cpus, "GPU": self._gpus or 0.0}
        nodes = [own["Resources"] for own in self._ray.nodes() if own["Alive"]]
        room = sum(_fit(wanted, node) for node in nodes)
        if room < self._replicas.least:
            has = ", ".join(
                f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes[:8]
            )
            raise SettingError(
                f"{self._replicas.least} replicas of {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs were "
                f"asked for, and the cluster has room for {room:g} ({has}): ask for fewer with --replicas, "
                "give each less with --cpus or --gpus, or add machines"
            )

    def deploy(self, given_up: Callable[[], bool]) -> Any:
        """A handle, once the least number of them is ready."""
        from ray import serve

        self.check_room()
        serve.start(proxy_location="Disabled")  # we listen ourselves
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if self.application in serve.status().applications:
            serve.delete(self.application)  # of a server that was killed
        target = serve.RunTarget(
            self._deployment(serve).bind(self._made), name=self.application, route_prefix=None
        )
        self._asked_for = True
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        ends = time.monotonic() + self._replicas.patience
        while not given_up():
            told = serve.status().applications[self.application]
            if told.status == "RUNNING":
                handle.record_routing_stats.remote().result(timeout_s=60)  # the router is made now
                return handle
            if told.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise SettingError(f"no replica could be started: {_why(told)}")
            if time.monotonic() > ends:
                raise SettingError(
                    f"the replicas were not ready after {self._replicas.patience:g} seconds: {_why(told)}; "
                    "is something else using the cluster (ray status)?"
                )
            time.sleep(LOOK)
        return None

    def delete(self) -> None:
        """Give them back, if they were ever asked for."""
        from ray import serve

        if self._asked_for:
            serve.delete(self.application)

    def _deployment(self, serve: Any) -> Any:
        limits, told = self._made.limits, self._replicas
        number: dict[str, Any] = {"num_replicas": told.least}
        if told.scales:
            number = {
                "autoscaling_config": {
                    "min_replicas": told.least,
                    "max_replicas": told.most,
                    "metrics_interval_s": 1.0,
                    "look_back_period_s": 5.0,
                    "upscale_delay_s": told.up,
                    "downscale_delay_s": told.down,
                    "policy": {
                        "policy_function": POLICY,
                        "policy_kwargs": {"seconds": told.seconds},
                    },
                }
            }
        return serve.deployment(
            Replica,
            name=DEPLOYMENT,
            ray_actor_options={"num_cpus": told.cpus, "num_gpus": self._gpus},
            max_ongoing_requests=limits.queue + limits.slots + SPARE,
            graceful_shutdown_timeout_s=limits.seconds,  # one that is taken away answers first
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=HEALTH,
            max_constructor_retry_count=TRIES,
            request_router_config={
                "request_router_class": ROUTER,
                "request_router_kwargs": {"routing": told.routing},
                "request_routing_stats_period_s": REPORTING,
            },
            logging_config={"enable_access_log": False},
            **number,
        )


def _fit(wanted: dict[str, float], node: dict[str, float]) -> float:
    """How many replicas a node holds."""
    asked = {kind: number for kind, number in wanted.items() if number}
    return min((node.get(kind, 0.0) // number for kind, number in asked.items()), default=math.inf)


def _why(told: Any) -> str:
    """The last thing that Ray says of an application that is not running."""
    says = [told.message, *(own.message for own in told.deployments.values())]
    lines = [line.strip() for text in says for line in (text or "").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines or ["Ray does not say why"])[-1]
