"""ModelDeployment: what to read for a decision, and whose changes may ask for another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from kubeloop.conditions import condition
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, annotations_of, entries, is_terminating, key_of, section
from kubeloop.plan import Plan
from kubeloop.reading import Cluster, children, find
from kubeloop.resource import of
from kubeloop.types import HTTP_ROUTE
from kubeloop.wiring import begins, owner_of_kind
from modelplane_operator.api import (
    InferenceCluster,
    ModelCache,
    ModelDeployment,
    ModelEndpoint,
    ModelReplica,
    labels,
    names,
)
from modelplane_operator.api.model_deployment import Progressing, ReplicasScheduled
from modelplane_operator.lookups import backends, placed_on
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.models.deployment.gauges import GAUGES
from modelplane_operator.models.deployment.plan import Observed, plan
from modelplane_operator.models.replica.plan.symptoms import unrouted
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.requirement import NoCache
from modelplane_operator.selectors.cel import Device
from modelplane_operator.world import Scheduled, uncounted

DEPLOYMENTS, REPLICAS, ENDPOINTS = of(ModelDeployment), of(ModelReplica), of(ModelEndpoint)


WHILE_PAUSED = "replicas still leave clusters that are drained or deleted, and take requests while they answer"


def _routed(route: Manifest) -> Iterator[Key]:
    return (Key(route["metadata"]["namespace"], name) for name in backends(route))


def _backend(one: Manifest) -> Iterator[Key]:
    """Of a replica, or of its endpoint, which has its name."""
    namespace, name = key_of(one)
    yield Key(namespace, names.endpoint_backend(namespace, name))


def _cache(deployment: Manifest) -> Iterator[Key]:
    replica = section(deployment, "spec", "template", "spec") or section(deployment, "spec")  # or the older, flat shape
    if name := section(replica, "modelCacheRef").get("name"):
        yield Key(deployment["metadata"]["namespace"], name)


def _unplaced(deployment: Manifest) -> Iterator[bool]:
    placed = condition(deployment, ReplicasScheduled.__name__).is_true
    if not placed or condition(deployment, Progressing.__name__).reason == Progressing.NO_OTHER_PLACE.reason:
        yield True


INDEXES: Indexes = {
    REPLICAS: {"cluster": placed_on, "backend": _backend},
    DEPLOYMENTS: {"cache": _cache, "unplaced": _unplaced},
    ENDPOINTS: {"backend": _backend},
    HTTP_ROUTE: {"backend": _routed},
}


def controller(
    fleet: FleetView, grace: timedelta, scheduled: Scheduled = uncounted
) -> Controller[ModelDeployment, Observed]:
    """`grace`: how long a replica is out of rotation before it is disturbed."""

    def decide(seen: Observed) -> Plan:
        began = time.monotonic()
        decided = plan(seen)
        for told in decided.status.conditions if decided.status else ():
            if told.type == ReplicasScheduled.__name__:
                scheduled(told.reason, time.monotonic() - began)
        return decided

    async def observe(deployment: ModelDeployment, clients: Clients) -> Observed:
        hub, uid = clients.hub, deployment.metadata.uid or ""
        await _weigh(deployment, fleet.model.devices)
        homes = (deployment.key.namespace,)
        replicas = tuple(children(hub, (REPLICAS,), uid, homes))
        routed, reached = _rotation(hub, replicas)
        return Observed(
            deployment=deployment,
            cache=_find_cache(deployment, hub),
            fleet=fleet.model,
            clusters=fleet.clusters,
            replicas=replicas,
            endpoints=tuple(children(hub, (ENDPOINTS,), uid, homes)),
            routed=routed,
            reached=reached,
            grace=grace,
            now=clients.now(),
        )

    return Controller(
        ModelDeployment,
        observe,
        decide,
        sums_up=True,
        serial=True,  # each decision counts on the nodes that the ones before have taken
        watches={
            REPLICAS: _on_replica,
            DEPLOYMENTS: begins(_unplaced),
            ENDPOINTS: owner_of_kind("ModelDeployment"),
            of(InferenceCluster): _on_cluster,
            of(ModelCache): _on_cache,
            HTTP_ROUTE: _on_route,
        },
        on_connection=_concerned,
        while_paused=lambda _: WHILE_PAUSED,
        indexes=INDEXES,
        listeners=(fleet.listen,),
        on_health=(fleet.on_health,),
        gauges=GAUGES,
    )


async def _weigh(deployment: ModelDeployment, devices: frozenset[Device]) -> None:
    """Check the selectors and ask the devices in a thread, when that may take long: what it comes to is remembered.

    So the decision, which is taken in one go, finds it. Nobody else decides meanwhile, and the event loop goes on.
    """
    selectors = budget.texts(deployment.replica)
    if not budget.at_once(selectors, devices):
        await asyncio.to_thread(budget.prepare, selectors, devices)


def _find_cache(deployment: ModelDeployment, hub: Cluster) -> ModelCache | NoCache:
    reference = deployment.replica.model_cache_ref
    if reference is None:
        return NoCache.NOT_READ  # nothing asks for one
    found = find(hub, of(ModelCache), Key(deployment.key.namespace, reference.name))
    if found is None or is_terminating(found):  # it waits for those that start from it: no more are to come
        return NoCache.NOT_FOUND
    return ModelCache.parse(found)


def _rotation(hub: Cluster, replicas: Iterable[Manifest]) -> tuple[frozenset[Key], frozenset[Key]]:
    """The replicas that some route leads to, and those to which a gateway is known to follow it."""
    routes = hub.find(HTTP_ROUTE)
    if routes is None:
        return frozenset(), frozenset()
    leading = {
        key: list(routes.by("backend", Key(key.namespace, names.endpoint_backend(*key))))
        for key in map(key_of, replicas)
    }
    routed = {key for key, found in leading.items() if found}
    return frozenset(routed), frozenset(key for key in routed if not any(map(unrouted, leading[key])))


# Who is woken ---------------------------------------------------------------------------------------------------------

_owner = owner_of_kind("ModelDeployment")


def _on_replica(change: Change, hub: Cluster) -> Iterable[Key]:
    """Its owner; and when nodes become free, those that wait for some."""
    yield from _owner(change, hub)
    if change.new is None or (change.old is not None and _holds(change.old) != _holds(change.new)):
        yield from _waiting(hub)


def _holds(replica: Manifest) -> tuple[Any, ...]:
    """What a replica has of an earlier shape."""
    return annotations_of(replica).get(labels.HELD_NODES), section(replica, "status").get("heldNodes")


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Whoever has replicas there or waits for room, when something has changed that the scheduler looks at."""
    before, after = (_offer(one) if one else None for one in change)
    return _concerned(change.latest["metadata"]["name"], hub) if before != after else ()


def _offer(cluster: Manifest) -> tuple[Any, ...]:
    metadata, status = section(cluster, "metadata"), section(cluster, "status")
    ready = condition(cluster, "Ready")
    return (
        metadata.get("labels"),
        metadata.get("deletionTimestamp"),
        annotations_of(cluster).get(labels.FORCE_DRAIN),
        cluster["spec"].get("taints"),
        section(cluster, "spec", "isolation").get("pods"),
        [
            (pool.get("name"), pool.get("className"), pool.get("fabric"))
            for pool in entries(cluster, "spec", "nodePools")
        ],
        status.get("gpuPools"),
        status.get("gateway"),
        section(status, "observed").get("apis"),
        ready.status,
        ready.reason,
        ready.message if ready.status == "False" else "",
    )


def _concerned(cluster: str, hub: Cluster) -> Iterable[Key]:
    """Deployments with replicas on a cluster, and those that wait for room."""
    replicas = hub.find(REPLICAS)
    for replica in replicas.by("cluster", cluster) if replicas else ():
        yield from _owner(Change(None, replica), hub)
    yield from _waiting(hub)


def _waiting(hub: Cluster) -> Iterable[Key]:
    deployments = hub.find(DEPLOYMENTS)
    return [key_of(one) for one in deployments.by("unplaced", True)] if deployments else ()  # noqa: FBT003


def _on_cache(change: Change, hub: Cluster) -> Iterable[Key]:
    """Deployments that name it, when it appears, goes, selects other clusters, or has another volume on one."""
    before, after = (one and _kept(one) for one in change)
    deployments = hub.find(DEPLOYMENTS)
    if before == after or deployments is None:
        return ()
    return [key_of(one) for one in deployments.by("cache", key_of(change.latest))]


def _kept(cache: Manifest) -> tuple[Any, ...]:
    metadata, clusters = section(cache, "metadata"), entries(cache, "status", "clusters")
    volumes = [(one.get("name"), one.get("volume")) for one in clusters]
    return metadata["uid"], metadata.get("deletionTimestamp"), cache["spec"].get("clusterSelector"), volumes


def _on_route(change: Change, hub: Cluster) -> Iterable[Key]:
    """The deployments behind the backends that a route has begun or ceased to lead to."""
    before, after = ((backends(one), unrouted(one)) if one else (frozenset[str](), "") for one in change)
    if before == after:
        return
    concerned = before[0] | after[0] if before[1] != after[1] else before[0] ^ after[0]
    namespace = change.latest["metadata"]["namespace"]
    for informer in filter(None, map(hub.find, (ENDPOINTS, REPLICAS))):  # either may be gone before the other
        for name in concerned:
            for one in informer.by("backend", Key(namespace, name)):
                yield from _owner(Change(None, one), hub)
