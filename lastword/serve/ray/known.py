"""Known: what the router of this process has heard of replicas, by application.

Ray makes the router, in a thread of its own and out of a copy of its class, so what it knows is left here for
whoever listens at the address.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastword.serve.ray.report import Report

_heard: dict[str, Mapping[str, Report]] = {}


def tell(application: str, replicas: Mapping[str, Report]) -> None:
    """From the router: all replicas that run, and what each said last."""
    _heard[application] = dict(replicas)


def replicas(application: str) -> Mapping[str, Report]:
    """All that run, by their names."""
    return _heard.get(application, {})
