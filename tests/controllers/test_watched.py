"""What is kept of the hub's objects, and of those of clusters."""

from __future__ import annotations

import pytest

from modelplane_operator.api import KINDS, ModelEndpoint
from modelplane_operator.api.types import of
from modelplane_operator.clients.informer import Informer
from modelplane_operator.controllers import inference_cluster, model_replica, serving_stack
from modelplane_operator.kube.objects import Key
from modelplane_operator.kube.ownership import APPLIED, FIELD_MANAGER
from modelplane_operator.kube.resources import DEPLOYMENT, LEADER_WORKER_SET, ResourceType
from modelplane_operator.runtime.operator import Kinds, _watched


@pytest.mark.parametrize("kind", [DEPLOYMENT, LEADER_WORKER_SET], ids=lambda kind: kind.kind)
def test_nothing_is_kept_of_the_pods_of_a_clusters_workloads(kind: ResourceType) -> None:
    """Whatever other controller has the type watched, too."""
    remote = (*inference_cluster.watched_remotely(), *model_replica.WATCHED_REMOTELY, *serving_stack.WATCHED_REMOTELY)
    _, watched = _watched(Kinds(controllers=(), watched_remotely=remote))
    (one,) = (each for each in watched if each.type == kind)
    informer = Informer(kind, lambda: 0.0, keeping=one.keeping)
    metadata = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1", "annotations": {APPLIED: "0f"}}
    applied = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    told = {"metadata": {**metadata, "managedFields": [applied]}, "spec": {"template": "x" * 2**20}, "status": {}}

    informer.written(told)

    entry = informer.entry(Key("team", "a"))
    assert entry is not None
    assert one.ours
    assert (informer.size < 1000, entry.owned, entry.manifest["metadata"]) == (True, '{"f:spec":{}}', metadata)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)
def test_nothing_is_kept_of_what_is_there_for_crossplane(kind: type[ModelEndpoint]) -> None:
    """Objects composed by hundreds are accepted for every kind, and nobody here reads them."""
    near, _ = _watched(Kinds(controllers=()))
    (watched,) = (one for one in near if one.type == of(kind))
    informer = Informer(of(kind), lambda: 0.0, keeping=watched.keeping)
    composed = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 200}] * 1000
    metadata = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}

    informer.written({"metadata": metadata, "spec": {"crossplane": {"resourceRefs": composed}, "kept": "this"}})

    assert informer.size < 1000
    kept = informer.get(Key("team", "a"))
    assert kept is not None
    assert kept["spec"] == {"kept": "this"}
