"""ServingStack: what to read of its charts, its gateway and its cluster's pools, and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from kubeloop.cache.watches import Watched
from kubeloop.client.kube import Kube
from kubeloop.conditions import condition
from kubeloop.errors import Connecting, Unreachable
from kubeloop.helm import steps as releases
from kubeloop.helm.driver import Helm
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, annotations_of, entries, key_of, labels_of
from kubeloop.reading import Cluster, applied, find
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
from modelplane_operator.api import InferenceCluster, ModelReplica, ServingStack, labels, names
from modelplane_operator.api.inference_cluster import GatewaySecured
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clusters.cluster import connections
from modelplane_operator.clusters.cluster.connections import Connections, cluster_of
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.hub_gateway import GATEWAYS, hub_gateway, on_authority, on_gateway
from modelplane_operator.clusters.stack.beside import holder
from modelplane_operator.clusters.stack.chart_states import ObservedCharts
from modelplane_operator.clusters.stack.charts import GPU_DRIVER, NAMESPACES, asks_ai_gateway, optional_charts
from modelplane_operator.clusters.stack.plan import CHILDREN, ClusterState, Observed, homes, plan
from modelplane_operator.clusters.stack.read_charts import look, ours
from modelplane_operator.clusters.stack.render import ClusterSoftware, parts, render_namespaces
from modelplane_operator.lookups import placed_on

STACKS, CLUSTERS, REPLICAS = of(ServingStack), of(InferenceCluster), of(ModelReplica)

OTHERS_LAST = timedelta(minutes=5)
"""How long others' software is taken to be there before it is looked for again: all Deployments are read for it."""
_OF_THE_GATEWAY = f"gateway.envoyproxy.io/owning-gateway-name={names.CLUSTER_GATEWAY}"


INDEXES: Indexes = {
    **connections.INDEXES,
    STACKS: {**connections.INDEXES[STACKS], "cluster": lambda stack: (cluster_of(stack),)},
    REPLICAS: {"cluster": placed_on},
}
RECORDS = Watched(SECRET, bare=True)
"""Of Helm's records the metadata tell enough; their content may be a megabyte each."""


def controller(
    definitions: tuple[Manifest, ...], helm: Helm, fabrics: Fabrics, known: Connections | None = None
) -> Controller[ServingStack, Observed]:
    """`definitions` are those of the kinds that the AI gateway needs and no chart brings.

    `fabrics`: what is kept of nodes; `known` says what is wrong with kubeconfigs.
    """

    async def observe(stack: ServingStack, clients: Clients) -> Observed:
        name = cluster_of(stack.to_manifest())
        try:
            remote = clients.fleet(name)
            unreachable = remote.health.error
        except Connecting:
            remote, unreachable = None, None
        except Unreachable as error:
            remote, unreachable = None, (known.why(name) if known else None) or error
        state = None
        if remote is not None and remote.health.answers and remote.synced:
            state = await _observe_state(stack, remote, helm, clients, definitions)
        replicas = clients.hub.find(REPLICAS) if stack.metadata.deletion_timestamp else None
        return Observed(
            stack,
            name,
            state,
            unreachable,
            clients.now().replace(microsecond=0),
            tuple(str(key_of(one)) for one in replicas.by("cluster", name)) if replicas else (),
            abandoned=_abandoned(stack, name, clients.hub),
            unverified=remote.unverified if remote is not None and name == str(stack.key) else None,
            hub=hub_gateway(clients.hub, clients.now()),
            closed=_closed(name, clients.hub),
        )

    return Controller(
        ServingStack,
        observe,
        plan,
        watches={CLUSTERS: _with_news, GATEWAYS: on_gateway(STACKS), SECRET: on_authority(STACKS)},
        remote_watches={kind: owner_of_kind("ServingStack") for kind in (*CHILDREN, SECRET)},
        on_connection=_stacks_of,
        concurrency_key=cluster_of,
        watched_remotely=(RECORDS, *fabrics.watched()),
        indexes=INDEXES,
        listeners=(known.listen,) if known else (),
        on_unauthorized=(known.refused,) if known else (),
        executors=releases.by(helm),
    )


async def _observe_state(
    stack: ServingStack, remote: Cluster, helm: Helm, clients: Clients, definitions: tuple[Manifest, ...]
) -> ClusterState:
    uid = stack.metadata.uid or ""
    wanted = parts(stack)
    children = tuple(applied(remote, CHILDREN, uid, (*PLATFORM_NAMESPACES, *NAMESPACES)))
    charts = await look(remote, uid, wanted, helm, clients, homes=homes(stack))
    terminating = stack.metadata.deletion_timestamp is not None
    needed = () if terminating or not asks_ai_gateway(stack.spec) else definitions
    others = dict[str, str]() if terminating else await _others(stack, remote, charts, clients)
    existing = ClusterSoftware(charts.releases, others)
    has_driver = GPU_DRIVER in others or any(
        part.name == GPU_DRIVER and charts.deployed(part.release.key) for part in wanted
    )
    lacking, having = _devices(remote, clients.hub) if has_driver and not terminating else ((), ())
    return ClusterState(
        charts=charts,
        children=children,
        taken=frozenset() if terminating else await _taken(stack, remote, clients, children, existing),
        definitions=await ours(remote, clients, needed),
        balancers=await _balancers(remote, clients, children) if terminating else (),
        no_devices=lacking,
        has_devices=bool(having),
        others=others,
    )


async def _others(stack: ServingStack, remote: Cluster, charts: ObservedCharts, clients: Clients) -> Mapping[str, str]:
    """Return the parts that somebody else has brought to the cluster, and who that is.

    A release of ours, or a Helm that has been at work on it, settles a part: it is the stack's from then on.
    """
    settled = charts.releases | {key for key, run in charts.runs.items() if run.verb == "install"}
    open_ = tuple(one for one in optional_charts(stack.spec) if one.release not in settled)

    async def ask(kube: Kube) -> Mapping[str, str]:
        definitions = [
            *(await kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True)).items,
            *(await kube.list(DEVICE_CLASS, bare=True)).items,
        ]
        names = {one["metadata"]["name"] for one in definitions}
        there = [one for one in open_ if one.marker.name in names]
        deployments = (await kube.list(DEPLOYMENT)).items if there else ()
        whose = {one.name: holder(one.marker, one.release, definitions, deployments) for one in there}
        return {name: who for name, who in whose.items() if who}

    if not open_:
        return {}
    question = ("others", tuple(one.name for one in open_))
    return await clients.reads.of(remote, question, ask, clients.now(), lasts=OTHERS_LAST, nothing_lasts=A_MOMENT)


async def _taken(
    stack: ServingStack, remote: Cluster, clients: Clients, children: Iterable[Manifest], existing: ClusterSoftware
) -> frozenset[str]:
    """The namespaces that are to be there and are somebody else's."""
    ours = {child["metadata"]["name"] for child in children if child["kind"] == "Namespace"}
    missing = tuple(sorted({manifest["metadata"]["name"] for manifest in render_namespaces(stack, existing)} - ours))

    async def ask(kube: Kube) -> frozenset[str]:
        return frozenset([name for name in missing if await kube.find(NAMESPACE, Key("", name))])

    return await clients.reads.of(remote, ("namespaces", missing), ask, clients.now())


async def _balancers(remote: Cluster, clients: Clients, children: Iterable[Manifest]) -> tuple[str, ...]:
    """What Envoy Gateway takes away once the Gateway is gone."""

    async def ask(kube: Kube) -> tuple[str, ...]:
        found = (await kube.list(SERVICE, selector=_OF_THE_GATEWAY)).items
        return tuple(str(key_of(one)) for one in found if one["spec"].get("type") == "LoadBalancer")

    left = frozenset((child["kind"], child["metadata"]["name"]) for child in children)
    return await clients.reads.of(remote, ("load balancers", left), ask, clients.now())


def _devices(remote: Cluster, hub: Cluster) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pools that have nodes and declare devices to claim: those whose nodes publish none of them, and the others."""
    cluster = find(hub, CLUSTERS, Key("", remote.name))
    declared: dict[str, set[str]] = {
        pool["name"]: {device["driver"] for device in entries(pool, "devices") if device.get("claim") != "Synthetic"}
        for pool in entries(cluster or {}, "status", "gpuPools")
    }
    if not any(declared.values()):
        return (), ()
    pool_of = {node["metadata"]["name"]: labels_of(node)[labels.POOL] for node in remote.find(NODE) or ()}
    published: dict[str, set[str]] = {pool: set() for pool in pool_of.values()}
    for one in remote.find(RESOURCE_SLICE) or ():
        if pool := pool_of.get(one["spec"].get("nodeName", "")):
            published[pool].add(one["spec"]["driver"])
    asked = {pool: found for pool in published if (found := declared.get(pool))}
    lacking = tuple(sorted(pool for pool, drivers in asked.items() if drivers - published[pool]))
    return lacking, tuple(sorted(asked.keys() - {*lacking}))


def _abandoned(stack: ServingStack, name: str, hub: Cluster) -> bool:
    """Whether somebody has said so, of the stack or of its cluster, or the cluster is no longer known."""
    owned = name != str(stack.key)
    cluster = find(hub, CLUSTERS, Key("", name)) if owned else None
    if owned and cluster is None:
        return True
    noted = {**(annotations_of(cluster) if cluster else {}), **stack.metadata.annotations}
    return noted.get(labels.ABANDON) == "true"


def _stacks_of(name: str, hub: Cluster) -> Iterable[Key]:
    stacks = hub.find(STACKS)
    return map(key_of, stacks.by("cluster", name)) if stacks else ()


def _closed(name: str, hub: Cluster) -> bool:
    """Whether no request comes to the cluster by http."""
    cluster = find(hub, CLUSTERS, Key("", name))
    return cluster is None or condition(cluster, GatewaySecured.__name__).is_true


def _with_news(change: Change, hub: Cluster) -> Iterable[Key]:
    """The stacks of a cluster whose pools declare something else than before, or to which no more http leads."""
    before, after = (
        (entries(one or {}, "status", "gpuPools"), condition(one or {}, GatewaySecured.__name__).status)
        for one in change
    )
    return _stacks_of(change.latest["metadata"]["name"], hub) if before != after else ()
