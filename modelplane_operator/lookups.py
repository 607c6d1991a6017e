"""What objects of several kinds are found by."""

from __future__ import annotations

from kubeloop.objects import Manifest, entries


def backends(route: Manifest) -> frozenset[str]:
    """The Services that a route leads to."""
    rules = entries(route, "spec", "rules")
    return frozenset(backend["name"] for rule in rules for backend in entries(rule, "backendRefs"))


def placed_on(replica: Manifest) -> tuple[str, ...]:
    """The cluster of a replica: what replicas are found by."""
    return (replica["spec"].get("clusterName", ""),)
