"""Index functions for objects of several kinds."""

from __future__ import annotations

from kubeloop.objects import Manifest, entries, labels_of
from modelplane_operator.api import labels


def backends(route: Manifest) -> frozenset[str]:
    """Return the names of the Services that a route refers to."""
    rules = entries(route, "spec", "rules")
    return frozenset(backend["name"] for rule in rules for backend in entries(rule, "backendRefs"))


def cluster_of_replica(replica: Manifest) -> tuple[str, ...]:
    """Return the cluster of a replica, by which replicas are indexed."""
    return (replica["spec"].get("clusterName", ""),)


def cluster_of_endpoint(endpoint: Manifest) -> tuple[str, ...]:
    """Return the cluster in the label of an endpoint, by which endpoints are indexed."""
    name = labels_of(endpoint).get(labels.CLUSTER)
    return (name,) if name else ()
