"""InferenceCluster: what to read of it on the hub and on the cluster itself, and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelplane_operator.api import InferenceClass, InferenceCluster, ModelReplica, names
from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.collection import Index
from modelplane_operator.clients.connection import Watched
from modelplane_operator.clients.errors import Unreachable
from modelplane_operator.clients.resources import (
    ENVOY_PROXY,
    GATEWAY,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    NAMESPACE,
    RESOURCE_SLICE,
    ResourceType,
    key_of,
    of,
)
from modelplane_operator.controllers import connections, inference_class
from modelplane_operator.controllers.connections import Connections
from modelplane_operator.controllers.loop import Change, Clients, Controller
from modelplane_operator.controllers.steps import Cluster
from modelplane_operator.controllers.wiring import owner_of_kind
from modelplane_operator.planning.inference_cluster import CHILDREN, Observed, There, plan

CLUSTERS, CLASSES, REPLICAS = of(InferenceCluster), of(InferenceClass), of(ModelReplica)
APIS: Mapping[str, ResourceType] = {
    "DRA": RESOURCE_SLICE,
    "EnvoyGateway": ENVOY_PROXY,
    "GatewayAPI": GATEWAY,
    "InferencePool": INFERENCE_POOL,
    "LeaderWorkerSet": LEADER_WORKER_SET,
}
"""What a cluster may serve, by the names that its status has for them, and a type that tells."""


def _placed_on(replica: Manifest) -> tuple[str, ...]:
    return (replica["spec"].get("clusterName", ""),)


INDEXES: Mapping[ResourceType, Mapping[str, Index]] = {
    CLUSTERS: {**inference_class.INDEXES[CLUSTERS], **connections.INDEXES[CLUSTERS]},
    REPLICAS: {"cluster": _placed_on},
}


WATCHED_AFAR = tuple(map(Watched, APIS.values()))
"""What is to be watched on workload clusters beside what wakes us."""


def controller(known: Connections) -> Controller[InferenceCluster, Observed]:
    """`known` says what is wrong with kubeconfigs."""

    async def observe(cluster: InferenceCluster, clients: Clients) -> Observed:
        name = cluster.metadata.name
        replicas, classes = clients.hub.find(REPLICAS), clients.hub.find(CLASSES)
        wanted = sorted({pool.class_name for pool in cluster.spec.node_pools})
        found = [classes.get(Key("", one)) if classes else None for one in wanted]
        try:
            site = clients.fleet(name)
        except Unreachable:
            site = None
        silence = site.health.error if site else None
        return Observed(
            cluster,
            {one["metadata"]["name"]: InferenceClass.parse(one) for one in found if one},
            tuple(key_of(one) for one in replicas.by("cluster", name)) if replicas else (),
            await _there(cluster, site) if site and site.health.answers and site.synced else None,
            silence,
            known.why(name),
            site is not None,
            clients.now().replace(microsecond=0),
        )

    return Controller(
        InferenceCluster,
        observe,
        plan,
        woken_by={CLASSES: _with_pools_of_it, REPLICAS: _counting_it},
        woken_from_afar_by={kind: owner_of_kind("InferenceCluster") for kind in CHILDREN},
        woken_by_connection=lambda name, _: (Key("", name),),
        lane=lambda manifest: manifest["metadata"]["name"],
    )


async def _there(cluster: InferenceCluster, site: Cluster) -> There:
    uid = cluster.metadata.uid or ""
    collections = {kind: site.find(kind) for kind in CHILDREN}
    children = [child for found in collections.values() if found for child in found.owned_by(uid)]
    namespace = await site.kube.find(NAMESPACE, Key("", names.SYSTEM_NAMESPACE))
    ours = {(child["kind"], child["metadata"]["name"]) for child in children}
    return There(
        apis=frozenset(name for name, kind in APIS.items() if (found := site.find(kind)) and found.served),
        children=tuple(children),
        has_namespace=namespace is not None and ("Namespace", names.SYSTEM_NAMESPACE) not in ours,
    )


def _with_pools_of_it(change: Change, hub: Cluster) -> Iterable[Key]:
    """The clusters that name a class, when it says something else than before."""
    if change.old and change.new and _version(change.old) == _version(change.new):
        return ()
    clusters = hub.find(CLUSTERS)
    return map(key_of, clusters.by("class", change.latest["metadata"]["name"])) if clusters else ()


def _version(known: Manifest) -> tuple[str, int | None]:
    return known["metadata"]["uid"], known["metadata"].get("generation")


def _counting_it(change: Change, _: Cluster) -> Iterable[Key]:
    """The clusters on which there is a replica more or less."""
    before, after = (set(_placed_on(one)) if one else set[str]() for one in change)
    return [Key("", name) for name in sorted(before ^ after)]
