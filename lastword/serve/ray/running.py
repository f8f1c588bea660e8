"""Running on Ray: the process that listens, and the replicas behind it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection

from lastword.engines.worker import Source
from lastword.serve.limits import Limits
from lastword.serve.ray.cluster import cluster
from lastword.serve.ray.deploying import Deployed
from lastword.serve.ray.fleet import RayFleet
from lastword.serve.ray.replica import Made
from lastword.serve.ray.settings import Replicas
from lastword.serve.running import check_locked, extra_needed, listening, own_names

log = logging.getLogger("lastword.serve")


def serve_on_ray(
    source: Source,
    *,
    name: str,
    replicas: Replicas,
    address: str | None = None,  # None: a cluster of this machine, which ends with the server
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits = Limits(),
    keys: Collection[str] = (),
    without_key: bool = False,
    say: Callable[[str], None] = log.info,
) -> None:
    """Serve replicas of a model until a signal comes: the first drains, a second one stops."""
    check_locked(host, keys, without_key)
    with extra_needed():
        from lastword.serve.ray.front import create_front
    with cluster(address, say) as ray:
        inner = secrets.token_urlsafe() if keys else None
        deployed = Deployed(ray, Made(source.in_full(), name, limits, inner), replicas)
        deployed.check_room()
        fleet = RayFleet(deployed, limits)
        front = create_front(fleet, limits=limits, keys=keys, inner_key=inner, hosts=own_names(host, keys))
        server = listening(front, fleet, name=name, host=host, port=port, limits=limits, say=say)
        try:
            server.run()
        finally:
            if address is not None:  # else all of Ray ends with us
                deployed.delete()
