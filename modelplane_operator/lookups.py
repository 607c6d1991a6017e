"""Index functions for objects of several kinds."""

from __future__ import annotations

from kubeloop.objects import Manifest, entries


def backends(route: Manifest) -> frozenset[str]:
    """Return the names of the Services that a route refers to."""
    rules = entries(route, "spec", "rules")
    return frozenset(backend["name"] for rule in rules for backend in entries(rule, "backendRefs"))


def cluster_of_replica(replica: Manifest) -> tuple[str, ...]:
    """Return the cluster of a replica, by which replicas are indexed."""
    return (replica["spec"].get("clusterName", ""),)
