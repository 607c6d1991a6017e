"""Which news has a deployment decide again: of the fleet while it waits for room, and of routes while replicas go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.kube import Kube
from kubeloop.loop import Change
from kubeloop.objects import Key
from kubeloop.reading import Cluster
from kubeloop.types import HTTP_ROUTE, ResourceType
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_deployment import ReplicasScheduled
from modelplane_operator.clusters.cluster.controller import CLUSTERS
from modelplane_operator.models.deployment.controller import DEPLOYMENTS, ENDPOINTS, INDEXES, REPLICAS, controller
from tests.support.informers import holding, stored
from tests.support.manifests import change

Manifest = dict[str, Any]

FLEET = cast("Any", SimpleNamespace(add_event_handlers=None, on_health=None))


def never() -> Kube:
    raise AssertionError("nothing is read")


WATCHES = controller(FLEET, timedelta(), ReferencedObjects(never, float, 1.0)).watches
OWNED = {labels.OWNER_KIND: "ModelDeployment", labels.OWNER_NAMESPACE: "team", labels.OWNER_NAME: "mine"}
MINE = Key("team", "mine")


def woken(kind: ResourceType, old: Manifest | None, new: Manifest | None, *there: tuple[ResourceType, Manifest]) -> Any:
    informers = {
        each: holding(each, [one for type_, one in there if type_ == each], **INDEXES.get(each, {}))
        for each in (DEPLOYMENTS, REPLICAS, ENDPOINTS)
    }
    found: Iterable[Key] = WATCHES[kind](Change(old, new), cast("Cluster", SimpleNamespace(find=informers.get)))
    return list(found)


def deployment(placed: str) -> Manifest:
    said = [{"type": ReplicasScheduled.__name__, "status": placed, "reason": "x"}]
    return {**stored(DEPLOYMENTS, "mine", "team"), "status": {"conditions": said}}


def test_one_that_begins_to_wait_for_room_looks_once_more_for_what_came_meanwhile() -> None:
    placed, waits = deployment("True"), deployment("False")

    assert woken(DEPLOYMENTS, placed, waits) == [MINE]
    for old, new in ((waits, change(waits, "metadata.resourceVersion", "7")), (waits, placed), (waits, None)):
        assert woken(DEPLOYMENTS, old, new) == [], (old, new)


def test_a_cluster_that_begins_to_serve_a_type_is_news_for_those_that_wait() -> None:
    before = {**stored(CLUSTERS, "berlin"), "status": {"observed": {"apis": []}}}
    after = change(before, "status.observed.apis", ["leaderworkersets"])

    slower = change(before, "status.observed.latencyMs", 9)
    waits = (DEPLOYMENTS, deployment("False"))
    assert woken(CLUSTERS, before, after, waits) == [MINE]
    assert woken(CLUSTERS, before, slower, waits) == []


@pytest.mark.parametrize("kind", [REPLICAS, ENDPOINTS])
def test_a_route_that_leaves_a_replica_wakes_its_deployment_whether_or_not_its_endpoint_is_there(
    kind: ResourceType,
) -> None:
    one = stored(kind, "mine-1", "team", labels=OWNED)
    leads = {
        **stored(HTTP_ROUTE, "r", "team"),
        "spec": {"rules": [{"backendRefs": [{"name": names.endpoint_backend("team", "mine-1")}]}]},
    }
    left = change(leads, "spec.rules", [])

    assert woken(HTTP_ROUTE, leads, left, (kind, one)) == [MINE]
    assert woken(HTTP_ROUTE, left, left, (kind, one)) == []
