"""What on a cluster holds up its deletion, and what somebody has only labelled as if it did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Event
from kubeloop.reading import Cluster
from kubeloop.types import DEPLOYMENT, NAMESPACE, ResourceType
from modelplane_operator.api import labels, names
from modelplane_operator.api.labels import FIELD_MANAGER
from modelplane_operator.clusters.cluster.on_cluster import of_models

HOME = names.remote_namespace("ml-team")
OF_REPLICA = {
    labels.OWNER_KIND: "ModelReplica",
    labels.OWNER_NAMESPACE: "ml-team",
    labels.OWNER_NAME: "m",
    labels.OWNER_UID: "u",
}
OF_NAMESPACE = {labels.OWNER_KIND: "Namespace", labels.OWNER_NAME: "ml-team", labels.OWNER_UID: "n"}


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "marks", "manager", "holds"),
    [
        (DEPLOYMENT, HOME, "m", OF_REPLICA, FIELD_MANAGER, True),
        (NAMESPACE, "", HOME, OF_NAMESPACE, FIELD_MANAGER, True),
        (DEPLOYMENT, HOME, "m", OF_REPLICA, "kubectl", False),
        (DEPLOYMENT, "theirs", "m", OF_REPLICA, FIELD_MANAGER, False),
        (NAMESPACE, "", "theirs", OF_NAMESPACE, FIELD_MANAGER, False),
        (DEPLOYMENT, HOME, "m", {**OF_REPLICA, labels.OWNER_KIND: "ServingStack"}, FIELD_MANAGER, False),
    ],
)
def test_what_we_applied_for_a_model_holds_up_a_cluster_and_nothing_else(
    kind: ResourceType, namespace: str, name: str, marks: dict[str, str], manager: str, *, holds: bool
) -> None:
    applied = {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    where = {"namespace": namespace} if namespace else {}
    metadata: dict[str, Any] = {"name": name, **where, "uid": "x", "resourceVersion": "1", "labels": marks}
    metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"  # of namespaces, only those that are terminating hold it up
    found = Informer(kind, now=lambda: 0.0)
    found.on_event(Event("ADDED", {"metadata": {**metadata, "managedFields": [applied]}, "spec": {}}))
    remote = cast("Cluster", SimpleNamespace(name="worker-1", find={kind: found}.get))
    hub = cast("Cluster", SimpleNamespace(find=lambda _: None))
    assert [*of_models(remote, hub)] == (
        [f"{kind.kind} {HOME}/m" if namespace else f"{kind.kind} {HOME}"] if holds else []
    )
