"""The controller of ServingStack: observes its releases, gateway and node pools, and maps changes to it.

Releases are observed by the metadata of Helm's Secrets, which the operator watches on each cluster. The content of a
record is only read for the revisions that a decision depends on (`read_charts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from kubeloop.cache.watches import Watched
from kubeloop.client.kube import Kube
from kubeloop.conditions import condition
from kubeloop.errors import Connecting, Unreachable
from kubeloop.gauges import Gauge, Sample
from kubeloop.helm import steps as releases
from kubeloop.helm.driver import Helm
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, annotations_of, entries, key_of, labels_of, section
from kubeloop.reading import Cluster, find, is_rewritten, list_applied
from kubeloop.reads import A_MOMENT
from kubeloop.resource import of
from kubeloop.types import (
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    DEVICE_CLASS,
    NAMESPACE,
    NODE,
    RESOURCE_SLICE,
    SECRET,
    SERVICE,
)
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import (
    InferenceCluster,
    ModelReplica,
    ServingStack,
    labels,
    names,
)
from modelplane_operator.api.inference_cluster import GatewaySecured
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clusters.cluster import connections
from modelplane_operator.clusters.cluster.cluster_gateway import CERTIFICATE, ISSUED
from modelplane_operator.clusters.cluster.connections import Connections, cluster_of
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.hub_gateway import GATEWAYS, hub_gateway, on_authority, on_gateway
from modelplane_operator.clusters.stack.beside import holder
from modelplane_operator.clusters.stack.chart_states import ObservedCharts
from modelplane_operator.clusters.stack.charts import GPU_DRIVER, NAMESPACES, asks_ai_gateway, optional_charts
from modelplane_operator.clusters.stack.fleet_view import ENDPOINTS, StackFleetView
from modelplane_operator.clusters.stack.plan import CHILDREN, ClusterState, Observed, homes, plan
from modelplane_operator.clusters.stack.read_charts import list_outdated_definitions, read_charts
from modelplane_operator.clusters.stack.render import ClusterSoftware, parts, render_namespaces
from modelplane_operator.clusters.stack.waves import TURNS
from modelplane_operator.lookups import cluster_of_endpoint, cluster_of_replica

STACKS, CLUSTERS, REPLICAS = of(ServingStack), of(InferenceCluster), of(ModelReplica)

OTHERS_LAST = timedelta(minutes=5)
"""Time for which detected foreign software is cached: detecting it reads all Deployments."""
_GATEWAY_SELECTOR = f"gateway.envoyproxy.io/owning-gateway-name={names.CLUSTER_GATEWAY}"


INDEXES: Indexes = {
    **connections.INDEXES,
    STACKS: {
        **connections.INDEXES[STACKS],
        "cluster": lambda stack: (cluster_of(stack),),
        "rollout": lambda stack: (section(stack, "status", "rollout").get("phase"),),
    },
    ENDPOINTS: {"cluster": cluster_of_endpoint},
    REPLICAS: {"cluster": cluster_of_replica},
}
RECORDS = Watched(SECRET, bare=True)
"""The watch of Helm's records. Metadata are enough; the content of a record may be a megabyte."""


def _sample_rollout(stack: Manifest) -> Iterator[Sample]:
    """Yield the phase of a stack's rollout."""
    if phase := section(stack, "status", "rollout").get("phase"):
        yield (cluster_of(stack), str(phase)), 1


GAUGE = Gauge(
    "modelplane_stack_rollout",
    "Phase of the rollout of changed charts on the cluster.",
    ("cluster", "phase"),
    _sample_rollout,
)


def controller(
    definitions: tuple[Manifest, ...], helm: Helm, fabrics: Fabrics, connections: Connections | None = None
) -> Controller[ServingStack, Observed]:
    """Return the controller.

    `definitions`: the CustomResourceDefinitions that the AI gateway needs and no chart installs. `fabrics` has the
    watches of nodes, `connections` the errors of kubeconfigs.
    """

    fleet_view = StackFleetView()

    async def observe(stack: ServingStack, clients: Clients) -> Observed:
        """Return a stack with the state of its cluster, if that answers and its caches have synced."""
        name = cluster_of(stack.to_manifest())
        try:
            remote = clients.fleet(name)
            unreachable = remote.health.error
        except Connecting:
            remote, unreachable = None, None
        except Unreachable as error:
            remote, unreachable = None, (connections.error_of(name) if connections else None) or error
        state = None
        if remote is not None and remote.health.answers and remote.synced:
            state = await _observe_state(stack, remote, helm, clients, definitions)
        replicas = clients.hub.find(REPLICAS) if stack.metadata.deletion_timestamp else None
        cluster = find(clients.hub, CLUSTERS, Key("", name))
        return Observed(
            stack,
            name,
            state,
            unreachable,
            clients.now().replace(microsecond=0),
            tuple(str(key_of(replica)) for replica in replicas.by("cluster", name)) if replicas else (),
            abandoned=_is_abandoned(stack, name, clients.hub),
            unverified=remote.unverified if remote is not None and name == str(stack.key) else None,
            around=await fleet_view.observe(
                stack, name, parts(stack, state.existing) if state else (), state.charts if state else None, clients
            ),
            hub=hub_gateway(clients.hub, clients.now()),
            # no request arrives by http any more
            closed=cluster is None or condition(cluster, GatewaySecured.__name__).is_true,
        )

    return Controller(
        ServingStack,
        observe,
        plan,
        watches={
            CLUSTERS: _map_from_cluster,
            STACKS: _map_from_turn,
            GATEWAYS: on_gateway(STACKS),
            SECRET: on_authority(STACKS),
        },
        remote_watches={kind: owner_of_kind("ServingStack") for kind in (*CHILDREN, SECRET)},
        on_connection=_find_stacks,
        concurrency_key=cluster_of,
        watched_remotely=(RECORDS, *fabrics.watches()),
        indexes=INDEXES,
        listeners=(connections.add_event_handlers,) if connections else (),
        on_unauthorized=(connections.on_unauthorized,) if connections else (),
        executors=releases.by(helm),
        gauges=(GAUGE,),
    )


async def _observe_state(
    stack: ServingStack, remote: Cluster, helm: Helm, clients: Clients, definitions: tuple[Manifest, ...]
) -> ClusterState:
    """Return the state of the cluster: releases, own objects, foreign software and published devices."""
    uid = stack.metadata.uid or ""
    components = parts(stack)
    children = tuple(list_applied(remote, CHILDREN, uid, (*PLATFORM_NAMESPACES, *NAMESPACES)))
    charts = await read_charts(remote, uid, components, helm, clients, homes=homes(stack))
    terminating = stack.metadata.deletion_timestamp is not None
    needed = () if terminating or not asks_ai_gateway(stack.spec) else definitions
    others = dict[str, str]() if terminating else await _find_foreign_software(stack, remote, charts, clients)
    existing = ClusterSoftware(charts.releases, others)
    has_driver = GPU_DRIVER in others or any(
        part.name == GPU_DRIVER and charts.find_deployed(part.release.key) for part in components
    )
    without_devices, with_devices = _devices(remote, clients.hub) if has_driver and not terminating else ((), ())
    return ClusterState(
        charts=charts,
        children=children,
        rewritten=is_rewritten(remote, SECRET, CERTIFICATE, ISSUED),
        taken=frozenset()
        if terminating
        else await _find_foreign_namespaces(stack, remote, clients, children, existing),
        definitions=await list_outdated_definitions(remote, clients, needed),
        balancers=await _find_balancers(remote, clients, children) if terminating else (),
        no_devices=without_devices,
        has_devices=bool(with_devices),
        others=others,
    )


async def _find_foreign_software(
    stack: ServingStack, remote: Cluster, charts: ObservedCharts, clients: Clients
) -> Mapping[str, str]:
    """Return the components that another owner has installed on the cluster, with that owner.

    A component with an own release, or with an own Helm install, belongs to the stack for good.
    """
    decided = charts.releases | {key for key, run in charts.runs.items() if run.verb == "install"}
    candidates = tuple(item for item in optional_charts(stack.spec) if item.release not in decided)

    async def detect(kube: Kube) -> Mapping[str, str]:
        """List definitions and, only if some match, Deployments, and return the owners of components."""
        definitions = [
            *(await kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True)).items,
            *(await kube.list(DEVICE_CLASS, bare=True)).items,
        ]
        names = {item["metadata"]["name"] for item in definitions}
        present = [item for item in candidates if item.marker.name in names]
        deployments = (await kube.list(DEPLOYMENT)).items if present else ()
        owners = {item.name: holder(item.marker, item.release, definitions, deployments) for item in present}
        return {name: owner for name, owner in owners.items() if owner}

    if not candidates:
        return {}
    cache_key = ("others", tuple(item.name for item in candidates))
    return await clients.reads.of(remote, cache_key, detect, clients.now(), lasts=OTHERS_LAST, nothing_lasts=A_MOMENT)


async def _find_foreign_namespaces(
    stack: ServingStack, remote: Cluster, clients: Clients, children: Iterable[Manifest], existing: ClusterSoftware
) -> frozenset[str]:
    """Return the required namespaces that exist and belong to another owner."""
    ours = {child["metadata"]["name"] for child in children if child["kind"] == "Namespace"}
    missing = tuple(sorted({manifest["metadata"]["name"] for manifest in render_namespaces(stack, existing)} - ours))

    async def find_existing(kube: Kube) -> frozenset[str]:
        """Return the missing namespaces that exist: their owner is another, as they are not among the children."""
        return frozenset([name for name in missing if await kube.find(NAMESPACE, Key("", name))])

    return await clients.reads.of(remote, ("namespaces", missing), find_existing, clients.now())


async def _find_balancers(remote: Cluster, clients: Clients, children: Iterable[Manifest]) -> tuple[str, ...]:
    """Return the gateway's load balancers, which Envoy Gateway deletes after the Gateway."""

    async def list_balancers(kube: Kube) -> tuple[str, ...]:
        """Return the gateway's Services of type LoadBalancer."""
        services = (await kube.list(SERVICE, selector=_GATEWAY_SELECTOR)).items
        return tuple(str(key_of(service)) for service in services if service["spec"].get("type") == "LoadBalancer")

    remaining = frozenset((child["kind"], child["metadata"]["name"]) for child in children)
    return await clients.reads.of(remote, ("load balancers", remaining), list_balancers, clients.now())


def _devices(remote: Cluster, hub: Cluster) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two lists of pools: nodes without devices of a declared driver, and nodes with those of all.

    Pools without nodes or without declared devices are in neither.
    """
    cluster = find(hub, CLUSTERS, Key("", remote.name))
    declared: dict[str, set[str]] = {
        pool["name"]: {device["driver"] for device in entries(pool, "devices") if device.get("claim") != "Synthetic"}
        for pool in entries(cluster or {}, "status", "gpuPools")
    }
    if not any(declared.values()):
        return (), ()
    pool_of = {node["metadata"]["name"]: labels_of(node)[labels.POOL] for node in remote.find(NODE) or ()}
    published: dict[str, set[str]] = {pool: set() for pool in pool_of.values()}
    for item in remote.find(RESOURCE_SLICE) or ():
        if pool := pool_of.get(item["spec"].get("nodeName", "")):
            published[pool].add(item["spec"]["driver"])
    expected = {pool: declared_drivers for pool in published if (declared_drivers := declared.get(pool))}
    missing = tuple(sorted(pool for pool, drivers in expected.items() if drivers - published[pool]))
    return missing, tuple(sorted(expected.keys() - {*missing}))


def _is_abandoned(stack: ServingStack, name: str, hub: Cluster) -> bool:
    """True if the stack or its cluster is annotated to be abandoned, or its InferenceCluster is deleted."""
    has_cluster = name != str(stack.key)
    cluster = find(hub, CLUSTERS, Key("", name)) if has_cluster else None
    if has_cluster and cluster is None:
        return True
    annotations = {**(annotations_of(cluster) if cluster else {}), **stack.metadata.annotations}
    return annotations.get(labels.ABANDON) == "true"


def _find_stacks(name: str, hub: Cluster) -> Iterable[Key]:
    """Return the stacks that use a connection."""
    stacks = hub.find(STACKS)
    return map(key_of, stacks.by("cluster", name)) if stacks else ()


def _map_from_turn(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the stacks that wait for their turn, when another has ended its own, or no longer stops them."""
    old, new = (section(manifest or {}, "status", "rollout").get("phase") for manifest in change)
    ended = old in {*TURNS, "Failed"} and new not in TURNS and old != new
    stacks = hub.find(STACKS)
    return map(key_of, stacks.by("rollout", "Waiting")) if stacks and ended else ()


def _map_from_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the stacks of a cluster whose pools or GatewaySecured status have changed."""
    old, new = (
        (entries(manifest or {}, "status", "gpuPools"), condition(manifest or {}, GatewaySecured.__name__).status)
        for manifest in change
    )
    return _find_stacks(change.latest["metadata"]["name"], hub) if old != new else ()
