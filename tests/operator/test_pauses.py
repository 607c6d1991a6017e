"""What of a tenant's objects goes on although they are paused, or held."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Event
from kubeloop.reading import Cluster
from modelplane_operator.api import labels
from modelplane_operator.clusters.cluster.controller import ENDPOINTS, INDEXES, REPLICAS, is_plain, plain_endpoints
from modelplane_operator.routing.endpoint.controller import while_paused


def test_the_endpoint_of_a_replica_goes_on_and_that_of_a_user_does_not() -> None:
    owner = {"kind": "ModelDeployment", "name": "m", "uid": "d", "controller": True}
    users: dict[str, Any] = {"metadata": {"name": "m", "namespace": "n"}}
    assert while_paused({"metadata": {**users["metadata"], "ownerReferences": [owner]}})
    assert not while_paused({"metadata": {**users["metadata"], "ownerReferences": [{**owner, "controller": False}]}})
    assert not while_paused(users)
    assert while_paused({"metadata": {**users["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})


def test_an_endpoint_that_somebody_holds_in_deletion_holds_no_http_open() -> None:
    spec = {"url": "http://10.0.0.1/n/m"}
    terminating = {"name": "m", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert is_plain({"metadata": {"name": "m"}, "spec": spec})
    assert is_plain({"metadata": {**terminating, "finalizers": ["team/x", labels.FINALIZER]}, "spec": spec})
    assert not is_plain({"metadata": {**terminating, "finalizers": ["team/x"]}, "spec": spec})


@pytest.mark.parametrize(("owner", "counts"), [("d", 1), ("somebody", 0)])
def test_an_endpoint_that_is_no_longer_its_deployments_holds_no_http_open(owner: str, counts: int) -> None:
    endpoints, replicas = (Informer(kind, lambda: 0.0, None, INDEXES[kind]) for kind in (ENDPOINTS, REPLICAS))
    named: dict[str, Any] = {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "1"}
    marks = {labels.CLUSTER: "east", labels.OWNER_UID: owner}
    endpoints.on_event(Event("ADDED", {"metadata": {**named, "labels": marks}, "spec": {"url": "http://10.0.0.1/n/m"}}))
    replica = {"metadata": {**named, "labels": {labels.OWNER_UID: "d"}}, "spec": {"clusterName": "east"}}
    replicas.on_event(Event("ADDED", replica))
    hub = cast("Cluster", SimpleNamespace(find={ENDPOINTS: endpoints, REPLICAS: replicas}.get))

    assert plain_endpoints("east", hub) == counts
