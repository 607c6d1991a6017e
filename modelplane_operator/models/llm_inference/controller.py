"""The LLMInference controller: what a plan reads at the current and former locations, and which changes enqueue it.

Locations are clusters of the fleet, the hub itself, or clusters of tenants (`tenant_clusters`). Former locations are
read until no object is left there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress

from kubeloop.cache.entries import check_metadata
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Connecting, Forbidden, KubeconfigError, Unreachable
from kubeloop.loop import Change, Clients, Controller, Indexes
from kubeloop.objects import Key, Manifest, key_of, labels_of, section
from kubeloop.reading import Cluster, find, list_children, unreadable
from kubeloop.resource import of
from kubeloop.strands import read_deadline
from kubeloop.types import DEPLOYMENT, HUB, INGRESS, SECRET, SERVICE, VLLM_RUNTIME
from kubeloop.wiring import owner_of_kind
from kubeloop.words import list_names
from modelplane_operator.api import InferenceCluster, LLMInference, ModelDeployment, ModelService, labels
from modelplane_operator.api.llm_inference import IN_CLUSTER, Location, TargetResolved
from modelplane_operator.api.llm_inference_grant import is_among, is_reserved
from modelplane_operator.models.llm_inference.plan import ClusterState, Observed, UnusableTarget, own_objects, plan
from modelplane_operator.models.llm_inference.render import TOKEN_KEY, TOKEN_SECRET
from modelplane_operator.models.llm_inference.tenant_clusters import KEY, TenantClusters, secret_of

INFERENCES, CLUSTERS = of(LLMInference), of(InferenceCluster)
DEPLOYMENTS, SERVICES = of(ModelDeployment), of(ModelService)
KINDS = {"VLLMRuntime": (VLLM_RUNTIME, INGRESS), "Deployment": (DEPLOYMENT, SERVICE, INGRESS)}
"""Types that an LLMInference has objects of, by runtime."""

Grants = Collection[tuple[str, str]]
"""(source namespace, allowed target namespace on the hub), or (source namespace, allowed Ingress host)."""


def _list_location_names(inference: Manifest) -> tuple[str, ...]:
    """Return the provider names of the current and former locations of an LLMInference."""
    provider = section(inference, "spec").get("providerConfigName")
    former = [location.get("name", "") for location in section(inference, "status").get("locations") or ()]
    return tuple(dict.fromkeys(filter(None, (provider, *former))))


INDEXES: Indexes = {INFERENCES: {"place": _list_location_names}}
"""Indexes of the hub's informers."""


def controller(
    referenced: ReferencedObjects, tenants: TenantClusters, on_hub: Grants, hosts: Grants
) -> Controller[LLMInference, Observed]:
    """Return the controller for LLMInferences.

    `referenced` reads tenants' Secrets by name. `on_hub` has the namespaces that `incluster` may use, and `hosts`
    the Ingress hosts that it may use.
    """

    async def observe(inference: LLMInference, clients: Clients) -> Observed:
        """Return an LLMInference with its target and the state of each location."""
        uid, namespaces = inference.metadata.uid or "", (inference.key.namespace,)
        terminating = inference.metadata.deletion_timestamp is not None
        target = None
        if inference.spec.placement == "Cluster" and not terminating:
            target = await _resolve_target(inference, clients, referenced, tenants, on_hub, hosts=hosts)
        current = (target,) if isinstance(target, Location) else ()
        locations = tuple(dict.fromkeys((*current, *inference.locations)))
        states = await asyncio.gather(
            *(_observe_location(inference, location, clients, referenced, tenants) for location in locations)
        )
        return Observed(
            inference,
            target,
            clients.now(),
            dict(zip(locations, states, strict=True)),
            tuple(list_children(clients.hub, (DEPLOYMENTS, SERVICES), uid, namespaces)),
        )

    return Controller(
        LLMInference,
        observe,
        plan,
        watches={
            DEPLOYMENTS: owner_of_kind("LLMInference"),
            SERVICES: owner_of_kind("LLMInference"),
            CLUSTERS: _on_cluster,
        },
        on_connection=_find_affected,
        concurrency_key=lambda manifest: manifest["metadata"]["namespace"],  # a tenant's clusters may answer slowly
        indexes=INDEXES,
        while_leading=(tenants.run,),
    )


async def _resolve_target(
    inference: LLMInference,
    clients: Clients,
    referenced: ReferencedObjects,
    tenants: TenantClusters,
    on_hub: Grants,
    *,
    hosts: Grants,
) -> Location | UnusableTarget:
    """Return the target location, or the reason why it cannot be used.

    An object that has a location keeps its type of target, even if another object gets the same name later.
    """
    name, home, dest = inference.spec.provider_config_name or "", inference.key.namespace, inference.target_namespace
    if name == IN_CLUSTER:
        if (home, dest) in on_hub and not is_reserved(dest):
            granted_hosts = [host for source, host in hosts if source == home]
            rejection = _check_host(inference, granted_hosts, "the hub", "the chart's llmInferences.hostsOnHub")
            return rejection or Location(target="Hub", name=name, namespace=dest)
        text = (
            f"field providerConfigName {IN_CLUSTER}: namespace {dest} of the hub is not granted to {home}. Have "
            f"{home}={dest} added to the chart's llmInferences.onHub"
        )
        return UnusableTarget(TargetResolved.NOT_GRANTED, text)
    previous = {item.target for item in inference.locations if item.name == name}
    secret = Key(home, name)
    kubeconfig_secret = None
    if previous != {"InferenceCluster"}:
        try:
            kubeconfig_secret = await referenced.find(
                SECRET, secret, frozenset({KEY}), waiting=(INFERENCES, inference.key)
            )
        except Forbidden as error:
            if "Secret" in previous:
                return UnusableTarget(TargetResolved.INVALID_KUBECONFIG, f"Secret {secret} cannot be read: {error}")
    if kubeconfig_secret is not None:
        try:
            access = await tenants.access(secret, kubeconfig_secret)
        except KubeconfigError as error:
            return UnusableTarget(TargetResolved.INVALID_KUBECONFIG, str(error))
        return Location(target="Secret", name=name, server=access.server, namespace=dest)
    if "Secret" in previous:
        text = (
            f"Secret {secret} has been deleted: create it again, or name another cluster. The model there keeps running"
        )
        return UnusableTarget(TargetResolved.NOT_FOUND, text)
    cluster = find(clients.hub, CLUSTERS, Key("", name))
    grants = InferenceCluster.parse(cluster).spec.llm_inferences if cluster else ()
    grant = next((item for item in grants if item.namespace == home and dest in item.target_namespaces), None)
    if grant is not None and not is_reserved(dest):
        field = "ingressHosts of its spec.llmInferences"
        rejection = _check_host(inference, grant.ingress_hosts, name, field)
        return rejection or Location(target="InferenceCluster", name=name, namespace=dest)
    # The message does not reveal whether the cluster exists: tenants must not be able to enumerate clusters.
    text = (
        f'field providerConfigName "{name}": no Secret of that name in {home}, and no InferenceCluster of that name '
        f"grants {home} its namespace {dest}. Fix the name, or have the grant added to spec.llmInferences"
    )
    return UnusableTarget(TargetResolved.NOT_GRANTED, text)


def _check_host(inference: LLMInference, granted: Collection[str], cluster: str, field: str) -> UnusableTarget | None:
    """Return the reason why the Ingress host is not granted on a shared cluster, or None."""
    host, home = inference.spec.ingress_host, inference.key.namespace
    if not host or is_among(host, granted):
        return None
    text = (
        f"Host {host} is not granted to {home} on {cluster} (granted: {list_names(sorted(granted)) or 'none'}). "
        f"Choose another spec.ingressHost, or have it added to {field}"
    )
    return UnusableTarget(TargetResolved.HOST_NOT_GRANTED, text)


async def _observe_location(
    inference: LLMInference,
    location: Location,
    clients: Clients,
    referenced: ReferencedObjects,
    tenants: TenantClusters,
) -> ClusterState:
    """Return the state of one location. Any error is part of the state, so that other locations are still read."""
    name = location.name
    try:
        match location.target:
            case "Hub":
                name = HUB
            case "Secret":
                name = await _connect_tenant(inference, location, referenced, tenants)
            case "InferenceCluster":
                pass
        async with read_deadline():
            return await _read_objects(inference, location, name, clients.cluster(name))
    except ClientError as error:
        return ClusterState(name, error, connecting=_is_connecting(clients, name))
    except Exception as error:  # noqa: BLE001 - a hostile cluster may answer anything
        return ClusterState(name, unreadable(name, error, clients.repeats))


async def _read_objects(inference: LLMInference, location: Location, name: str, cluster: Cluster) -> ClusterState:
    """Read the objects of the LLMInference at one location, by requests."""
    kube, key = cluster.kube, Key(location.namespace, inference.key.name)
    runtimes = VLLM_RUNTIME.kind in await kube.serves(VLLM_RUNTIME.api_version)
    kinds = [item for item in KINDS[inference.spec.runtime] if runtimes or item != VLLM_RUNTIME]
    objects = [item for kind in kinds if (item := await kube.find(kind, key)) is not None]
    for item in objects:
        check_metadata(item["metadata"])
    own = tuple(item for item in objects if own_objects(item, inference))
    others = tuple(item for item in objects if not own_objects(item, inference))
    token = VLLM_RUNTIME in kinds and await _has_token(kube, location.namespace, own)
    if runtimes and not own:
        others += await _find_foreign_engine(kube, key, inference.spec.runtime)
    return ClusterState(
        name, runtimes=runtimes, children=own, others=others, token=token, unverified=cluster.unverified
    )


def _is_connecting(clients: Clients, name: str) -> bool:
    """True if a cluster has not had time to answer yet."""
    try:
        health = clients.cluster(name).health
    except ClientError as error:
        return isinstance(error, Connecting)
    return health.error is None and not health.answers


async def _connect_tenant(
    inference: LLMInference, location: Location, referenced: ReferencedObjects, tenants: TenantClusters
) -> str:
    """Return the connection for the tenant's Secret, if it still leads to the same API server.

    Raise KubeconfigError if the Secret is missing or invalid, and Unreachable if it leads to another server.
    """
    secret = Key(inference.key.namespace, location.name)
    manifest = await referenced.find(SECRET, secret, frozenset({KEY}), waiting=(INFERENCES, inference.key))
    if manifest is None:
        raise KubeconfigError(f"Secret {secret} does not exist any more")
    access = await tenants.access(secret, manifest)
    if access.server != location.server:
        raise Unreachable(f"Secret {secret} leads to another API server than before")
    return tenants.connect(secret, access)


async def _has_token(kube: Kube, namespace: str, children: Iterable[Manifest]) -> bool:
    """True if a Hugging Face token exists; the last applied state while reading the Secret is forbidden."""
    try:
        secret = await kube.find(SECRET, Key(namespace, TOKEN_SECRET))
    except Forbidden:
        runtimes = (runtime for runtime in children if runtime["kind"] == VLLM_RUNTIME.kind)
        return any(section(runtime, "spec", "model").get("hfTokenSecret") for runtime in runtimes)
    return secret is not None and TOKEN_KEY in section(secret, "data")


async def _find_foreign_engine(kube: Kube, key: Key, runtime: str) -> tuple[Manifest, ...]:
    """Return a foreign engine with the same name and the other runtime.

    The production stack creates a Deployment with the name of its VLLMRuntime, and would take over an existing one.
    """
    with suppress(Forbidden):  # then none was created with this account
        if runtime == "Deployment":
            engine = await kube.find(VLLM_RUNTIME, key)
            return (engine,) if engine else ()
        engine = await kube.find(DEPLOYMENT, key)
        if engine and labels_of(engine).get(labels.OWNER_KIND) == LLMInference.definition.kind:
            return (engine,)
    return ()


# Mappers --------------------------------------------------------------------------------------------------------------


def _find_affected(connection: str, hub: Cluster) -> Iterable[Key]:
    """Return the LLMInferences that use or used a connection.

    A tenant's connection concerns only its own namespace.
    """
    informer, secret = hub.find(INFERENCES), secret_of(connection)
    keys = map(key_of, informer.by("place", secret.name if secret else connection)) if informer else ()
    return [key for key in keys if secret is None or key.namespace == secret.namespace]


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the LLMInferences on a cluster whose grants change."""
    old, new = (cluster and section(cluster, "spec").get("llmInferences") for cluster in change)
    return _find_affected(change.latest["metadata"]["name"], hub) if old != new else ()
