"""ModelEndpoint: what to read and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.watches import Watched
from kubeloop.client.resolver import Resolver
from kubeloop.conditions import condition
from kubeloop.loop import Change, Clients, Controller, Indexes, its_deletion
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, section
from kubeloop.reading import Cluster, applied, find
from kubeloop.resource import of
from kubeloop.types import (
    BACKEND,
    BACKEND_TLS_POLICY,
    ENDPOINT_SLICE,
    HTTP_ROUTE,
    HTTP_ROUTE_FILTER,
    SECRET,
    SERVICE,
    type_of,
)
from kubeloop.wiring import everyone, owner_of_kind
from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import GatewaySecured, InferenceCluster
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.clusters.cluster.hub_gateway import known_hosts
from modelplane_operator.lookups import backends
from modelplane_operator.models.replica.plan.symptoms import is_unseen
from modelplane_operator.routing.endpoint.backend_url import Backend, Reach, read_url
from modelplane_operator.routing.endpoint.hub_networks import HubRanges, Ranges
from modelplane_operator.routing.endpoint.outside import PlaceChecks, place_of
from modelplane_operator.routing.endpoint.plan import ClusterState, Observed, Outside, plan
from modelplane_operator.routing.endpoint.render import known_backend
from modelplane_operator.routing.gateway.data_plane import DataPlane
from modelplane_operator.routing.gateway.render import hub_gateway, known_plane, url_of

ENDPOINTS = of(ModelEndpoint)
GATEWAYS = of(InferenceGateway)
CLUSTERS = of(InferenceCluster)
REPLICAS = of(ModelReplica)
HUB_GATEWAY = Key("", names.DEFAULT_GATEWAY)
CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND_TLS_POLICY, BACKEND, HTTP_ROUTE_FILTER)
WATCHED = (Watched(SERVICE, bare=True), Watched(ENDPOINT_SLICE, bare=True))
"""Where one leads, an annotation tells; which content it has, another one."""


def controller(
    reach: Reach,
    referenced: ReferencedObjects,
    ranges: HubRanges,
    resolver: Resolver,
    places: PlaceChecks | None = None,
) -> Controller[ModelEndpoint, Observed]:
    """The controller, given where endpoints may lead, how Secrets are read, what is inside, and who tries places."""

    async def observe(endpoint: ModelEndpoint, clients: Clients) -> Observed:
        front, policies, credentials = (
            find(clients.hub, GATEWAYS, HUB_GATEWAY),
            clients.hub.find(BACKEND_TLS_POLICY),
            endpoint.spec.credentials,
        )
        ref = credentials.secret_ref if credentials else None
        secret = (Key(endpoint.key.namespace, ref.name), frozenset((ref.key,))) if ref else None
        children = tuple(applied(clients.hub, CHILDREN, endpoint.metadata.uid or "", (endpoint.key.namespace,)))
        cluster = _cluster(endpoint, clients.hub)
        hub = None if cluster is not None else Ranges() if endpoint.metadata.deletion_timestamp else await ranges.find()
        of_users = reach.of_users(hub.services, hub.pods, hub.nodes) if hub else reach
        place = place_of(endpoint, of_users) if hub and not endpoint.metadata.deletion_timestamp else None
        if places and not place:
            places.forget(endpoint.key)
        gateway = InferenceGateway.parse(front) if front else None
        ours = known_hosts(gateway, resolver) if gateway and cluster is None else frozenset[str]()
        return Observed(
            endpoint,
            children,
            _plane(gateway, children),
            of_users,
            tls_policies=policies is not None and policies.served,
            secret=await referenced.find(SECRET, *secret, waiting=(ENDPOINTS, endpoint.key), needed=secret[1])
            if secret
            else None,
            recheck=referenced.recheck,
            routes=tuple(_routes(endpoint, clients.hub)) if endpoint.metadata.deletion_timestamp else (),
            now=clients.now(),
            cluster=cluster,
            outside=Outside() if cluster else _outside(endpoint, children, clients.hub, resolver, reach, ours),
            reached=places.find(endpoint.key, place) if places and place else None,
        )

    watches = {
        GATEWAYS: _behind,
        CLUSTERS: _found_there,
        HTTP_ROUTE: _leaving,
        **dict.fromkeys(CHILDREN, owner_of_kind(ModelEndpoint.definition.kind)),
    }
    return Controller(
        ModelEndpoint,
        observe,
        plan,
        watches=watches,
        while_paused=while_paused,
        watched=WATCHED,
        indexes=INDEXES,
        listeners=(places.listen,) if places else (),
        while_leading=(referenced.run, *((places.run,) if places else ())),
    )


def while_paused(endpoint: Manifest) -> str:
    """That of a replica is not its tenant's to hold: clusters wait for the last that leads there by http."""
    return its_deletion(endpoint) or (
        "it follows its replica, which a pause does not hold up" if _owner(endpoint) else ""
    )


def _plane(gateway: InferenceGateway | None, children: Iterable[Manifest]) -> DataPlane:
    """How endpoints are written; while there is no hub gateway, as they were."""
    known = known_plane(map(type_of, children)) if gateway is None else None
    return known or hub_gateway(gateway).plane


def _cluster(endpoint: ModelEndpoint, hub: Cluster) -> ClusterState | None:
    """Where the replica of an endpoint is: that of its name, if one deployment owns both."""
    replica = find(hub, REPLICAS, endpoint.key)
    manifest = find(hub, ENDPOINTS, endpoint.key)
    if replica is None or manifest is None or not (_owner(manifest) and _owner(manifest) == _owner(replica)):
        return None
    cluster = find(hub, CLUSTERS, Key("", replica["spec"]["clusterName"]))
    if cluster is None:
        return ClusterState(None)
    return ClusterState(next(_gateway(cluster), None), section(cluster, "status", "gateway").get("port"))


def _owner(manifest: Manifest) -> str:
    """The uid of the ModelDeployment that made an object; empty without one."""
    references = entries(manifest, "metadata", "ownerReferences")
    kind = ModelDeployment.definition.kind
    return next((one["uid"] for one in references if one.get("controller") and one["kind"] == kind), "")


def _outside(  # noqa: PLR0917 - where an endpoint leads, and what there is of ours
    endpoint: ModelEndpoint,
    children: Iterable[Manifest],
    hub: Cluster,
    resolver: Resolver,
    reach: Reach,
    ours: frozenset[str],
) -> Outside:
    read = [
        read_url(endpoint.spec.url),
        *(known_backend(one) for one in children if type_of(one) in {SERVICE, BACKEND}),
    ]
    places = [one for one in read if isinstance(one, Backend)]
    named = {one.host for one in places if one.address is None and not reach.allows(one.host)}
    found = {name: resolver.find(name, endpoint.key.namespace) for name in named}
    addresses = (str(address) for one in found.values() if one for address in one.addresses)
    clusters = hub.find(CLUSTERS)
    hosts = {*(one.host for one in places), *addresses}
    there = {host: [*clusters.by("gateway", host)] if clusters else [] for host in hosts}
    gateways = frozenset(host for host, some in there.items() if some)
    closed = frozenset(host for host in gateways if all(map(_is_closed, there[host])))
    return Outside(found, gateways, closed, ours & hosts)


def _is_closed(cluster: Manifest) -> bool:
    """Whether the gateway of a cluster answers the hub's alone."""
    return condition(cluster, GatewaySecured.__name__).is_true


def _gateway(cluster: Manifest) -> Iterator[str]:
    """Where a cluster's gateway is, as a URL would name it."""
    address = section(cluster, "status", "gateway").get("address")
    read = read_url(url_of(address)) if address else None
    if isinstance(read, Backend):
        yield read.host


def _routes(endpoint: ModelEndpoint, hub: Cluster) -> Iterator[str]:
    """The routes by which requests may still come."""
    namespace, name = endpoint.key
    backend = names.endpoint_backend(namespace, name)
    routes = hub.find(HTTP_ROUTE)
    for route in routes.by("namespace", namespace) if routes else ():
        if backend in backends(route) or is_unseen(route):
            yield route["metadata"]["name"]


def _behind(change: Change, hub: Cluster) -> Iterable[Key]:
    """All endpoints, when another gateway is to answer."""
    if key_of(change.latest) != HUB_GATEWAY:
        return ()
    before, after = (_door(one) if one else None for one in (change.old, change.new))
    return everyone(ENDPOINTS)(change, hub) if before != after else ()


def _door(gateway: Manifest) -> tuple[object, ...]:
    """What endpoints depend on: how they are written, and where they must not lead."""
    return gateway["spec"].get("backend"), gateway["spec"].get("tls"), section(gateway, "status").get("address")


def _leaving(change: Change, hub: Cluster) -> Iterator[Key]:
    """The endpoints of a route's namespace that wait to be let go."""
    endpoints = hub.find(ENDPOINTS)
    return map(key_of, endpoints.by("terminating", key_of(change.latest).namespace) if endpoints else ())


def _terminating(endpoint: Manifest) -> Iterator[str]:
    if is_terminating(endpoint):
        yield key_of(endpoint).namespace


def _outside_at(endpoint: Manifest) -> Iterator[str]:
    """The hosts that an endpoint leads to, and is to. Whose it is says the plan: owners' references can be forged."""
    urls = {endpoint["spec"].get("url"), section(endpoint, "status", "routing").get("url")}
    read = (read_url(url) for url in urls if url)
    yield from {one.host for one in read if isinstance(one, Backend)}


def _found_there(change: Change, hub: Cluster) -> Iterable[Key]:
    """The endpoints of users at the address of a cluster's gateway, when that is another, or is closed or opened."""
    endpoints = hub.find(ENDPOINTS)
    before, after = (
        {(at, _is_closed(one)) for at in _gateway(one)} if one else set[tuple[str, bool]]() for one in change
    )
    hosts = {host for host, _ in before ^ after}
    return {key_of(one) for host in hosts for one in endpoints.by("outside", host)} if endpoints else ()


def _namespace(route: Manifest) -> Iterator[str]:
    yield key_of(route).namespace


INDEXES: Indexes = {
    CLUSTERS: {"gateway": _gateway},
    ENDPOINTS: {"terminating": _terminating, "outside": _outside_at},
    HTTP_ROUTE: {"namespace": _namespace},
}
