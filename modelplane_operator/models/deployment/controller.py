"""The ModelDeployment controller: what a plan reads, and which changes enqueue a deployment.

The scheduler's fleet is shared by all deployments and follows the watches by itself. A cluster that changes enqueues
the deployments with replicas there, and those that wait for capacity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.conditions import condition
from kubeloop.errors import ClientError
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, annotations_of, entries, is_terminating, key_of, section
from kubeloop.plan import Plan
from kubeloop.reading import Cluster, find, list_children
from kubeloop.resource import of
from kubeloop.types import CONFIG_MAP, HTTP_ROUTE, SECRET
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
from modelplane_operator.api.model_deployment import Progressing, ReplicasScheduled, UpToDate
from modelplane_operator.api.model_replica import OperatorSettings
from modelplane_operator.lookups import backends, cluster_of_replica
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.models.deployment.gauges import GAUGES
from modelplane_operator.models.deployment.plan import Observed, plan
from modelplane_operator.models.deployment.plan.rolling import disruption_of, find_active, find_waiting
from modelplane_operator.models.replica.plan.referenced import describe_source
from modelplane_operator.models.replica.plan.symptoms import describe_unrouted
from modelplane_operator.models.replica.render import sources, sources_of
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.disruptions import FLEET_LIMIT, DisruptionBudget, DisruptionScope
from modelplane_operator.scheduling.requirement import NoCache
from modelplane_operator.world import Scheduled, ignore_count

REREAD = timedelta(seconds=15)  # for thousands of replicas that wait it takes some tenths of a second
"""Time for which replicas that wait to roll are cached. Those that roll are counted each time."""
DEPLOYMENTS, REPLICAS, ENDPOINTS = of(ModelDeployment), of(ModelReplica), of(ModelEndpoint)


WHILE_PAUSED = "replicas still leave clusters that are drained or deleted, and take requests while they answer"
"""Message about what still happens while a deployment is paused."""


def _backend_keys(route: Manifest) -> Iterator[Key]:
    """Yield the keys of the backends of an HTTPRoute."""
    return (Key(route["metadata"]["namespace"], name) for name in backends(route))


def _backend_key(manifest: Manifest) -> Iterator[Key]:
    """Yield the key of the backend of a replica or of its endpoint, which have the same name."""
    namespace, name = key_of(manifest)
    yield Key(namespace, names.endpoint_backend(namespace, name))


def _cache_key(deployment: Manifest) -> Iterator[Key]:
    """Yield the key of the ModelCache that a deployment references."""
    replica = section(deployment, "spec", "template", "spec") or section(deployment, "spec")  # or the older, flat shape
    if name := section(replica, "modelCacheRef").get("name"):
        yield Key(deployment["metadata"]["namespace"], name)


def _needs_capacity(deployment: Manifest) -> Iterator[bool]:
    """Yield True if a deployment waits for capacity: for a replica without a cluster, or before one leaves or rolls."""
    has_clusters = condition(deployment, ReplicasScheduled.__name__).is_true
    reasons = {condition(deployment, kind.__name__).reason for kind in (Progressing, UpToDate)}
    if not has_clusters or reasons & {Progressing.NO_OTHER_PLACE.reason, UpToDate.WAITING_FOR_ROOM.reason}:
        yield True


def _scopes(replica: Manifest) -> Iterator[DisruptionScope]:
    """Yield the scopes in which a replica counts: the fleet, its cluster, and its pools."""
    yield from disruption_of(replica).scopes


def _is_rolling(replica: Manifest) -> Iterator[bool]:
    """Yield True if the outdated pods of a replica change."""
    if annotations_of(replica).get(labels.ROLLING):
        yield True


def _waits_to_roll(deployment: Manifest) -> Iterator[bool]:
    """Yield True if outdated pods of a deployment change, or wait for their turn."""
    if condition(deployment, UpToDate.__name__).reason == UpToDate.ROLLING.reason:
        yield True


INDEXES: Indexes = {
    REPLICAS: {"cluster": cluster_of_replica, "scope": _scopes, "backend": _backend_key, "rolling": _is_rolling},
    DEPLOYMENTS: {"cache": _cache_key, "unplaced": _needs_capacity, "rolling": _waits_to_roll},
    ENDPOINTS: {"backend": _backend_key},
    HTTP_ROUTE: {"backend": _backend_keys},
}
"""Indexes of the hub's informers."""


def controller(
    fleet: FleetView,
    grace: timedelta,
    referenced: ReferencedObjects,
    scheduled: Scheduled = ignore_count,
    *,
    operator: OperatorSettings | None = None,
    max_disruptions: str = FLEET_LIMIT,
) -> Controller[ModelDeployment, Observed]:
    """Return the controller for ModelDeployments.

    `grace` is the time between a replica's leaving rotation and its change or removal. `referenced` reads the Secrets
    and ConfigMaps that templates name. `scheduled` receives the reason of ReplicasScheduled and the seconds that the
    plan took. `operator` are the settings that replicas record. `max_disruptions` is the fleet's limit on replicas
    that are out of service through changes that the operator makes by itself.
    """
    disruptions = DisruptionReader(fleet, max_disruptions)

    def decide(observed: Observed) -> Plan:
        """Return the plan, and report the time that it took."""
        started_at = time.monotonic()
        result = plan(observed)
        for current in result.status.conditions if result.status else ():
            if current.type == ReplicasScheduled.__name__:
                scheduled(current.reason, time.monotonic() - started_at)
        return result

    async def observe(deployment: ModelDeployment, clients: Clients) -> Observed:
        """Return a deployment with its replicas, endpoints, routes and cache, and the fleet."""
        hub, uid = clients.hub, deployment.metadata.uid or ""
        devices, selectors = fleet.model.devices, budget.texts(deployment.replica)
        if not budget.at_once(selectors, devices):
            # In a thread, so as not to block the event loop. The plan finds the results in the cache; no other plan of
            # this kind runs meanwhile.
            await asyncio.to_thread(budget.prepare, selectors, devices)
        namespaces = (deployment.key.namespace,)
        replicas = tuple(list_children(hub, (REPLICAS,), uid, namespaces))
        routed, reached = _find_routed(hub, replicas)
        return Observed(
            deployment=deployment,
            cache=_find_cache(deployment, hub),
            fleet=fleet.model,
            clusters=fleet.clusters,
            replicas=replicas,
            endpoints=tuple(list_children(hub, (ENDPOINTS,), uid, namespaces)),
            routed=routed,
            reached=reached,
            grace=grace,
            now=clients.now(),
            operator=operator,
            disruptions=disruptions.find(deployment, hub, clients.now()),
            missing=await _find_missing(deployment, replicas, referenced),
        )

    return Controller(
        ModelDeployment,
        observe,
        decide,
        sums_up=True,
        serial=True,  # each decision depends on the nodes that earlier ones have reserved
        watches={
            REPLICAS: _on_replica,
            DEPLOYMENTS: begins(_needs_capacity),  # capacity may have become free before the index had the deployment
            ENDPOINTS: owner_of_kind("ModelDeployment"),
            of(InferenceCluster): _on_cluster,
            of(ModelCache): _on_cache,
            HTTP_ROUTE: _on_route,
        },
        on_connection=_find_affected,
        while_paused=lambda _: WHILE_PAUSED,
        indexes=INDEXES,
        listeners=(fleet.add_event_handlers,),
        on_health=(fleet.on_health,),
        gauges=GAUGES,
    )


async def _find_missing(
    deployment: ModelDeployment, replicas: Iterable[Manifest], referenced: ReferencedObjects
) -> str:
    """Return which Secrets and ConfigMaps of the template do not exist; "" if all do.

    Those that each running replica names already do not count: its cluster has copies.
    """
    required = [source for source in sources_of(deployment.replica.engines) if source.required]
    running = [sources(ModelReplica.parse(item)) for item in replicas if not is_terminating(item)] if required else []
    messages: list[str] = []
    for source in required:
        if all(source in existing for existing in running):
            continue
        kind, key = _KINDS[source.kind], Key(deployment.key.namespace, source.name)
        keys = None if source.use == "PullSecret" else source.keys
        try:
            manifest = await referenced.find(
                kind, key, keys, waiting=(DEPLOYMENTS, deployment.key), needed=source.needed
            )
        except ClientError as error:
            messages.append(f"{source.kind} {source.name}, which cannot be read ({error})")
        else:
            messages += filter(None, [describe_source(source, manifest)])
    return ", ".join(messages)


@dataclass(slots=True)
class DisruptionReader:
    """Reads the budget of disruptions from the informers."""

    fleet: FleetView
    limit: str
    """Limit of the fleet."""
    _budget: DisruptionBudget = field(default_factory=DisruptionBudget)
    """The budget without the disruptions that have begun."""
    _read_at: datetime | None = None
    """Time when it was read."""

    def find(self, deployment: ModelDeployment, hub: Cluster, now: datetime) -> DisruptionBudget:
        """Return the budget for a deployment. It allows nothing if the deployment does not roll."""
        replicas, deployments = hub.find(REPLICAS), hub.find(DEPLOYMENTS)
        if not deployment.metadata.annotations.get(labels.ROLL) or replicas is None or deployments is None:
            return DisruptionBudget(fleet="0")
        if self._read_at is None or not timedelta() <= now - self._read_at < REREAD:
            rolling = [replicas.children_of(item["metadata"]["uid"]) for item in deployments.by("rolling", True)]  # noqa: FBT003
            waiting = find_waiting(chain.from_iterable(rolling), deployments.get, self.fleet.clusters, now)
            self._budget = DisruptionBudget(
                self.limit,
                {name: cluster.spec.max_disruptions for name, cluster in self.fleet.clusters.items()},
                {scope: len(replicas.keys_by("scope", scope)) for scope in _all_scopes(replicas)},
                waiting=tuple(sorted(waiting)),
            )
            self._read_at = now
        return replace(self._budget, active=tuple(find_active(replicas.by("rolling", True), now)))  # noqa: FBT003


def _all_scopes(replicas: Informer) -> Iterator[DisruptionScope]:
    """Yield the scopes that have replicas."""
    return (scope for scope in replicas.values("scope") if isinstance(scope, DisruptionScope))


_KINDS = {"Secret": SECRET, "ConfigMap": CONFIG_MAP}
"""Types of the objects that templates name, by kind."""


def _find_cache(deployment: ModelDeployment, hub: Cluster) -> ModelCache | NoCache:
    """Return the ModelCache that the deployment references, or the reason why there is none.

    A cache that is being deleted counts as not found: no further replica may start from it.
    """
    reference = deployment.replica.model_cache_ref
    if reference is None:
        return NoCache.NOT_READ  # the deployment references no cache
    cache = find(hub, of(ModelCache), Key(deployment.key.namespace, reference.name))
    if cache is None or is_terminating(cache):  # it waits for replicas that start from it, so no new one may
        return NoCache.NOT_FOUND
    return ModelCache.parse(cache)


def _find_routed(hub: Cluster, replicas: Iterable[Manifest]) -> tuple[frozenset[Key], frozenset[Key]]:
    """Return the replicas that a route leads to, and those of them whose routes the gateway has programmed."""
    routes = hub.find(HTTP_ROUTE)
    if routes is None:
        return frozenset(), frozenset()
    routes_by_replica = {
        key: list(routes.by("backend", Key(key.namespace, names.endpoint_backend(*key))))
        for key in map(key_of, replicas)
    }
    routed = {key for key, leading_routes in routes_by_replica.items() if leading_routes}
    return frozenset(routed), frozenset(
        key for key in routed if not any(map(describe_unrouted, routes_by_replica[key]))
    )


# Mappers --------------------------------------------------------------------------------------------------------------

_owner = owner_of_kind("ModelDeployment")


def _on_replica(change: Change, hub: Cluster) -> Iterable[Key]:
    """Yield the owner of a replica and, when nodes or a turn to roll are free, the deployments that wait for them."""
    yield from _owner(change, hub)
    if change.old is not None and any(_is_rolling(change.old)) and not (change.new and any(_is_rolling(change.new))):
        deployments = hub.find(DEPLOYMENTS)
        yield from map(key_of, deployments.by("rolling", True) if deployments else ())  # noqa: FBT003
    if change.new is None or (
        change.old is not None and _read_reserved_nodes(change.old) != _read_reserved_nodes(change.new)
    ):
        yield from _deployments_without_capacity(hub)


def _read_reserved_nodes(replica: Manifest) -> tuple[Any, ...]:
    """Return what decides which nodes a replica takes: what an earlier shape reserves, and where its pods run."""
    status = section(replica, "status")
    return annotations_of(replica).get(labels.HELD_NODES), status.get("heldNodes"), status.get("podNodes")


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the deployments on a cluster or without capacity, if a field that the scheduler reads has changed."""
    old, new = (_pick_scheduling_fields(manifest) if manifest else None for manifest in change)
    return _find_affected(change.latest["metadata"]["name"], hub) if old != new else ()


def _pick_scheduling_fields(cluster: Manifest) -> tuple[Any, ...]:
    """Return the fields of an InferenceCluster that the scheduler and the renderer read."""
    metadata, status = section(cluster, "metadata"), section(cluster, "status")
    ready = condition(cluster, "Ready")
    return (
        metadata.get("labels"),
        metadata.get("deletionTimestamp"),
        annotations_of(cluster).get(labels.FORCE_DRAIN),
        cluster["spec"].get("taints"),
        section(cluster, "spec", "isolation").get("pods"),
        cluster["spec"].get("maintenance"),
        cluster["spec"].get("maxDisruptions"),
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


def _find_affected(cluster: str, hub: Cluster) -> Iterable[Key]:
    """Yield the deployments with replicas on a cluster, and those that wait for capacity."""
    replicas = hub.find(REPLICAS)
    for replica in replicas.by("cluster", cluster) if replicas else ():
        yield from _owner(Change(None, replica), hub)
    yield from _deployments_without_capacity(hub)


def _deployments_without_capacity(hub: Cluster) -> Iterable[Key]:
    """Return the deployments that wait for capacity."""
    deployments = hub.find(DEPLOYMENTS)
    return [key_of(item) for item in deployments.by("unplaced", True)] if deployments else ()  # noqa: FBT003


def _on_cache(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the deployments that reference a cache, when it appears, goes, or changes its clusters or volumes."""
    old, new = (manifest and _cache_fields(manifest) for manifest in change)
    deployments = hub.find(DEPLOYMENTS)
    if old == new or deployments is None:
        return ()
    return [key_of(manifest) for manifest in deployments.by("cache", key_of(change.latest))]


def _cache_fields(cache: Manifest) -> tuple[Any, ...]:
    """Return the fields of a ModelCache that deployments depend on."""
    metadata, clusters = section(cache, "metadata"), entries(cache, "status", "clusters")
    volumes = [(entry.get("name"), entry.get("volume")) for entry in clusters]
    return metadata["uid"], metadata.get("deletionTimestamp"), cache["spec"].get("clusterSelector"), volumes


def _on_route(change: Change, hub: Cluster) -> Iterable[Key]:
    """Yield the deployments behind the backends that a route began or ceased to lead to."""
    old, new = (
        (backends(manifest), describe_unrouted(manifest)) if manifest else (frozenset[str](), "") for manifest in change
    )
    if old == new:
        return
    affected = old[0] | new[0] if old[1] != new[1] else old[0] ^ new[0]
    namespace = change.latest["metadata"]["namespace"]
    for informer in filter(None, map(hub.find, (ENDPOINTS, REPLICAS))):  # either may be deleted before the other
        for name in affected:
            for manifest in informer.by("backend", Key(namespace, name)):
                yield from _owner(Change(None, manifest), hub)
