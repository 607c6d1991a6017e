"""LLMInference: where it is to be, what is there and where it was before, and who wakes it."""

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
from kubeloop.reading import Cluster, children, find, unreadable
from kubeloop.resource import of
from kubeloop.strands import a_look
from kubeloop.types import DEPLOYMENT, HUB, INGRESS, SECRET, SERVICE, VLLM_RUNTIME
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import InferenceCluster, LLMInference, ModelDeployment, ModelService, labels
from modelplane_operator.api.llm_inference import IN_CLUSTER, Location, TargetResolved
from modelplane_operator.api.llm_inference_grant import is_among, is_reserved
from modelplane_operator.models.llm_inference.plan import ClusterState, Observed, UnusableTarget, ours, plan
from modelplane_operator.models.llm_inference.render import TOKEN_KEY, TOKEN_SECRET
from modelplane_operator.models.llm_inference.tenant_clusters import KEY, TenantClusters, secret_of

INFERENCES, CLUSTERS = of(LLMInference), of(InferenceCluster)
DEPLOYMENTS, SERVICES = of(ModelDeployment), of(ModelService)
KINDS = {"VLLMRuntime": (VLLM_RUNTIME, INGRESS), "Deployment": (DEPLOYMENT, SERVICE, INGRESS)}

Grants = Collection[tuple[str, str]]
"""Pairs: a namespace of the hub, and one of the hub's in which its LLMInferences may be, or a host of theirs there."""


def _places(inference: Manifest) -> tuple[str, ...]:
    """The names by which it says where it is to be, and was."""
    named = section(inference, "spec").get("providerConfigName")
    before = [one.get("name", "") for one in section(inference, "status").get("locations") or ()]
    return tuple(dict.fromkeys(filter(None, (named, *before))))


INDEXES: Indexes = {INFERENCES: {"place": _places}}


def controller(
    referenced: ReferencedObjects, tenants: TenantClusters, on_hub: Grants, hosts: Grants
) -> Controller[LLMInference, Observed]:
    """`referenced`: Secrets of tenants, read by name; `on_hub`: who may be where with `incluster`, `hosts`: how."""

    async def observe(inference: LLMInference, clients: Clients) -> Observed:
        uid, homes = inference.metadata.uid or "", (inference.key.namespace,)
        terminating = inference.metadata.deletion_timestamp is not None
        target = None
        if inference.spec.placement == "Cluster" and not terminating:
            target = await _target(inference, clients, referenced, tenants, on_hub, hosts=hosts)
        wanted = (target,) if isinstance(target, Location) else ()
        places = tuple(dict.fromkeys((*wanted, *inference.locations)))
        states = await asyncio.gather(*(_state(inference, one, clients, referenced, tenants) for one in places))
        return Observed(
            inference,
            target,
            clients.now(),
            dict(zip(places, states, strict=True)),
            tuple(children(clients.hub, (DEPLOYMENTS, SERVICES), uid, homes)),
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
        on_connection=_concerned,
        concurrency_key=lambda manifest: manifest["metadata"]["namespace"],  # whose clusters may answer slowly
        indexes=INDEXES,
        while_leading=(tenants.run,),
    )


async def _target(
    inference: LLMInference,
    clients: Clients,
    referenced: ReferencedObjects,
    tenants: TenantClusters,
    on_hub: Grants,
    *,
    hosts: Grants,
) -> Location | UnusableTarget:
    """Where it is to be. One that is somewhere stays with what led there, whatever else comes to have that name."""
    name, home, there = inference.spec.provider_config_name or "", inference.key.namespace, inference.target_namespace
    if name == IN_CLUSTER:
        if (home, there) in on_hub and not is_reserved(there):
            given = [host for source, host in hosts if source == home]
            refused = _host_refused(inference, given, "The hub", "the chart's llmInferences.hostsOnHub")
            return refused or Location(target="Hub", name=name, namespace=there)
        words = f"LLMInferences of namespace {home} may not be in namespace {there} of the hub: the platform team lets "
        return UnusableTarget(
            TargetResolved.NOT_GRANTED, f"{words}them by {home}={there} in the chart's llmInferences.onHub"
        )
    before = {one.target for one in inference.locations if one.name == name}
    secret = Key(home, name)
    found = None
    if before != {"InferenceCluster"}:
        try:
            found = await referenced.find(SECRET, secret, frozenset({KEY}), waiting=(INFERENCES, inference.key))
        except Forbidden as error:
            if "Secret" in before:
                return UnusableTarget(TargetResolved.INVALID_KUBECONFIG, f"Secret {secret} cannot be read: {error}")
    if found is not None:
        try:
            access = await tenants.access(secret, found)
        except KubeconfigError as error:
            return UnusableTarget(TargetResolved.INVALID_KUBECONFIG, str(error))
        return Location(target="Secret", name=name, server=access.server, namespace=there)
    if "Secret" in before:
        words = f"Secret {secret} does not exist any more: put it back, or name another; what is there stays"
        return UnusableTarget(TargetResolved.NOT_FOUND, words)
    cluster = find(clients.hub, CLUSTERS, Key("", name))
    grants = InferenceCluster.parse(cluster).spec.llm_inferences if cluster else ()
    grant = next((one for one in grants if one.namespace == home and there in one.target_namespaces), None)
    if grant is not None and not is_reserved(there):
        where = "ingressHosts of its spec.llmInferences"
        refused = _host_refused(inference, grant.ingress_hosts, f"InferenceCluster {name}", where)
        return refused or Location(target="InferenceCluster", name=name, namespace=there)
    # The same whether there is such a cluster or not: which there are is not for every tenant to find out.
    words = (
        f"There is no Secret {secret}, and no InferenceCluster {name} that lets namespace {home} have LLMInferences in "
        f"its namespace {there}: the platform team does so in its spec.llmInferences"
    )
    return UnusableTarget(TargetResolved.NOT_GRANTED, words)


def _host_refused(inference: LLMInference, given: Iterable[str], cluster: str, where: str) -> UnusableTarget | None:
    """Why its Ingress would be somebody else's, on a cluster that others share."""
    host, home = inference.spec.ingress_host, inference.key.namespace
    if not host or is_among(host, given):
        return None
    words = (
        f"{cluster} lets LLMInferences of namespace {home} have no host {host}: the platform team does so in {where}"
    )
    return UnusableTarget(TargetResolved.HOST_NOT_GRANTED, words)


async def _state(
    inference: LLMInference,
    place: Location,
    clients: Clients,
    referenced: ReferencedObjects,
    tenants: TenantClusters,
) -> ClusterState:
    name = place.name
    try:
        match place.target:
            case "Hub":
                name = HUB
            case "Secret":
                name = await _connection(inference, place, referenced, tenants)
            case "InferenceCluster":
                pass
        async with a_look():
            return await _looked(inference, place, name, clients.cluster(name))
    except ClientError as error:
        return ClusterState(name, error, connecting=_connecting(clients, name))
    except Exception as error:  # noqa: BLE001 - a hostile one may answer anything, and the others are looked at, too
        return ClusterState(name, unreadable(name, error, clients.repeats))


async def _looked(inference: LLMInference, place: Location, name: str, cluster: Cluster) -> ClusterState:
    """What is in one place, by questions."""
    kube, key = cluster.kube, Key(place.namespace, inference.key.name)
    runtimes = VLLM_RUNTIME.kind in await kube.serves(VLLM_RUNTIME.api_version)
    kinds = [one for one in KINDS[inference.spec.runtime] if runtimes or one != VLLM_RUNTIME]
    found = [one for kind in kinds if (one := await kube.find(kind, key)) is not None]
    for one in found:
        check_metadata(one["metadata"])
    mine = tuple(one for one in found if ours(one, inference))
    others = tuple(one for one in found if not ours(one, inference))
    token = VLLM_RUNTIME in kinds and await _token(kube, place.namespace, mine)
    if runtimes and not mine:
        others += await _engine_of_another(kube, key, inference.spec.runtime)
    return ClusterState(
        name, runtimes=runtimes, children=mine, others=others, token=token, unverified=cluster.unverified
    )


def _connecting(clients: Clients, name: str) -> bool:
    """Whether a cluster has not had the time to answer yet."""
    try:
        health = clients.cluster(name).health
    except ClientError as error:
        return isinstance(error, Connecting)
    return health.error is None and not health.answers


async def _connection(
    inference: LLMInference, place: Location, referenced: ReferencedObjects, tenants: TenantClusters
) -> str:
    """The way by which a Secret of the object's own namespace led there, if it still does."""
    secret = Key(inference.key.namespace, place.name)
    found = await referenced.find(SECRET, secret, frozenset({KEY}), waiting=(INFERENCES, inference.key))
    if found is None:
        raise KubeconfigError(f"Secret {secret} does not exist any more")
    access = await tenants.access(secret, found)
    if access.server != place.server:
        raise Unreachable(f"Secret {secret} leads to another API server than before")
    return tenants.connect(secret, access)


async def _token(kube: Kube, namespace: str, children: Iterable[Manifest]) -> bool:
    """Whether there is a token for models that ask for one. Where nobody lets us look, it stays as it is."""
    try:
        secret = await kube.find(SECRET, Key(namespace, TOKEN_SECRET))
    except Forbidden:
        runtimes = (one for one in children if one["kind"] == VLLM_RUNTIME.kind)
        return any(section(one, "spec", "model").get("hfTokenSecret") for one in runtimes)
    return secret is not None and TOKEN_KEY in section(secret, "data")


async def _engine_of_another(kube: Kube, key: Key, runtime: str) -> tuple[Manifest, ...]:
    """The engine of that name that another has by the other runtime.

    The production stack makes a Deployment of its VLLMRuntime's name, and would make one of ours its own.
    """
    with suppress(Forbidden):  # then none was made with this account
        if runtime == "Deployment":
            found = await kube.find(VLLM_RUNTIME, key)
            return (found,) if found else ()
        found = await kube.find(DEPLOYMENT, key)
        if found and labels_of(found).get(labels.OWNER_KIND) == LLMInference.definition.kind:
            return (found,)
    return ()


# Who is woken ---------------------------------------------------------------------------------------------------------


def _concerned(connection: str, hub: Cluster) -> Iterable[Key]:
    """Whoever is, was or is to be where a connection leads; a tenant's leads nobody of another namespace."""
    informer, secret = hub.find(INFERENCES), secret_of(connection)
    named = map(key_of, informer.by("place", secret.name if secret else connection)) if informer else ()
    return [key for key in named if secret is None or key.namespace == secret.namespace]


def _on_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    before, after = (one and section(one, "spec").get("llmInferences") for one in change)
    return _concerned(change.latest["metadata"]["name"], hub) if before != after else ()
