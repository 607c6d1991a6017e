"""The controller of ModelEndpoint: observes it on the hub, and maps changes to it.

Endpoints of users need the hub's networks, the addresses of their names and the result of a connection; endpoints of
replicas need the gateway of their cluster. Both kinds have the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.cache.watches import Watched
from kubeloop.client.resolver import Resolver
from kubeloop.conditions import condition
from kubeloop.loop import Change, Clients, Controller, Indexes, its_deletion
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, section
from kubeloop.reading import Cluster, find, list_applied
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
from modelplane_operator.clusters.cluster.hub_gateway import allowed_hosts
from modelplane_operator.lookups import backends
from modelplane_operator.models.replica.plan.symptoms import is_unseen
from modelplane_operator.routing.endpoint.backend_url import Backend, Reach, read_url
from modelplane_operator.routing.endpoint.hub_networks import HubRanges, Ranges
from modelplane_operator.routing.endpoint.outside import PlaceChecks, place_of
from modelplane_operator.routing.endpoint.plan import ClusterState, Observed, Outside, plan
from modelplane_operator.routing.endpoint.render import rendered_backend
from modelplane_operator.routing.endpoint.through import ClusterGateways, find_path
from modelplane_operator.routing.gateway.render import hub_gateway, rendered_data_plane, url_of

ENDPOINTS = of(ModelEndpoint)
GATEWAYS = of(InferenceGateway)
CLUSTERS = of(InferenceCluster)
REPLICAS = of(ModelReplica)
HUB_GATEWAY = Key("", names.DEFAULT_GATEWAY)
"""Key of the InferenceGateway through which models are served."""
CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND_TLS_POLICY, BACKEND, HTTP_ROUTE_FILTER)
"""Types of objects that an endpoint has."""
WATCHED = (Watched(SERVICE, bare=True), Watched(ENDPOINT_SLICE, bare=True))
"""Watches of metadata only: one annotation has the backend, another the content that was applied."""


def controller(
    reach: Reach,
    referenced: ReferencedObjects,
    ranges: HubRanges,
    resolver: Resolver,
    places: PlaceChecks | None = None,
    *,
    gateways: ClusterGateways | None = None,
) -> Controller[ModelEndpoint, Observed]:
    """Return the controller.

    `reach`: where endpoints may lead. `referenced` reads Secrets, `ranges` the hub's networks. `places` checks the
    backends of users' endpoints, `gateways` the paths of replicas'.
    """

    async def observe(endpoint: ModelEndpoint, clients: Clients) -> Observed:
        """Return an endpoint with its objects, Secret, cluster and the addresses of its backends."""
        gateway_manifest, policies, credentials = (
            find(clients.hub, GATEWAYS, HUB_GATEWAY),
            clients.hub.find(BACKEND_TLS_POLICY),
            endpoint.spec.credentials,
        )
        reference = credentials.secret_ref if credentials else None
        secret = (Key(endpoint.key.namespace, reference.name), frozenset((reference.key,))) if reference else None
        children = tuple(list_applied(clients.hub, CHILDREN, endpoint.metadata.uid or "", (endpoint.key.namespace,)))
        cluster = _find_cluster(endpoint, clients.hub)
        hub_ranges = (
            None if cluster is not None else Ranges() if endpoint.metadata.deletion_timestamp else await ranges.find()
        )
        of_users = reach.of_users(hub_ranges.services, hub_ranges.pods, hub_ranges.nodes) if hub_ranges else reach
        place = place_of(endpoint, of_users) if hub_ranges and not endpoint.metadata.deletion_timestamp else None
        if places and not place:
            places.forget(endpoint.key)
        path = find_path(endpoint, cluster, reach) if cluster else None
        if gateways and not path:
            gateways.checks.forget(endpoint.key)
        reached = gateways.checks.find(endpoint.key, path) if gateways and path else None
        gateway = InferenceGateway.parse(gateway_manifest) if gateway_manifest else None
        plane_of_children = rendered_data_plane(map(type_of, children)) if gateway is None else None
        own_hosts = allowed_hosts(gateway, resolver) if gateway and cluster is None else frozenset[str]()
        return Observed(
            endpoint,
            children,
            plane_of_children or hub_gateway(gateway).plane,
            of_users,
            tls_policies=policies is not None and policies.served,
            secret=await referenced.find(SECRET, *secret, waiting=(ENDPOINTS, endpoint.key), needed=secret[1])
            if secret
            else None,
            recheck=referenced.recheck,
            routes=tuple(_find_routes(endpoint, clients.hub)) if endpoint.metadata.deletion_timestamp else (),
            now=clients.now(),
            cluster=cluster,
            outside=Outside()
            if cluster
            else _observe_outside(endpoint, children, clients.hub, resolver, reach, own_hosts),
            reached=places.find(endpoint.key, place) if places and place else reached,
        )

    watches = {
        GATEWAYS: _map_from_gateway,
        CLUSTERS: _map_from_cluster,
        HTTP_ROUTE: _map_from_route,
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
        listeners=tuple(checks.add_event_handlers for checks in (places, gateways) if checks),
        while_leading=(
            referenced.run,
            *((places.run,) if places else ()),
            *((gateways.checks.run,) if gateways else ()),
        ),
    )


def while_paused(endpoint: Manifest) -> str:
    """Return the work that continues while an endpoint is paused, as a message; empty if it is left alone.

    A replica's endpoint is not its tenant's to pause: clusters wait until the last one stops using http.
    """
    return its_deletion(endpoint) or (
        "it still follows its replica, which the pause does not stop" if _get_owner(endpoint) else ""
    )


def _find_cluster(endpoint: ModelEndpoint, hub: Cluster) -> ClusterState | None:
    """Return the cluster of the endpoint's replica; None if no replica of the same name has the same owner."""
    replica = find(hub, REPLICAS, endpoint.key)
    manifest = find(hub, ENDPOINTS, endpoint.key)
    if (
        replica is None
        or manifest is None
        or not (_get_owner(manifest) and _get_owner(manifest) == _get_owner(replica))
    ):
        return None
    cluster = find(hub, CLUSTERS, Key("", replica["spec"]["clusterName"]))
    if cluster is None:
        return ClusterState(None)
    host, port = next(_get_gateway_host(cluster), None), section(cluster, "status", "gateway").get("port")
    return ClusterState(host, port, key_of(cluster).name)


def _get_owner(manifest: Manifest) -> str:
    """Return the uid of the owning ModelDeployment; empty without one."""
    references = entries(manifest, "metadata", "ownerReferences")
    kind = ModelDeployment.definition.kind
    return next(
        (reference["uid"] for reference in references if reference.get("controller") and reference["kind"] == kind), ""
    )


def _observe_outside(  # noqa: PLR0917 - where an endpoint leads, and what there is of ours
    endpoint: ModelEndpoint,
    children: Iterable[Manifest],
    hub: Cluster,
    resolver: Resolver,
    reach: Reach,
    own_hosts: frozenset[str],
) -> Outside:
    """Return the known addresses of the backends, and which of them are gateways of clusters or of the hub."""
    parsed = [
        read_url(endpoint.spec.url),
        *(rendered_backend(item) for item in children if type_of(item) in {SERVICE, BACKEND}),
    ]
    backends = [item for item in parsed if isinstance(item, Backend)]
    hostnames = {item.host for item in backends if item.address is None and not reach.allows(item.host)}
    resolved = {name: resolver.find(name, endpoint.key.namespace) for name in hostnames}
    addresses = (str(address) for item in resolved.values() if item for address in item.addresses)
    clusters = hub.find(CLUSTERS)
    hosts = {*(item.host for item in backends), *addresses}
    clusters_by_host = {host: [*clusters.by("gateway", host)] if clusters else [] for host in hosts}
    gateways = frozenset(host for host, claiming in clusters_by_host.items() if claiming)
    closed = frozenset(host for host in gateways if all(map(_is_closed, clusters_by_host[host])))
    return Outside(resolved, gateways, closed, own_hosts & hosts)


def _is_closed(cluster: Manifest) -> bool:
    """True if the cluster's gateway answers the hub's gateway only."""
    return condition(cluster, GatewaySecured.__name__).is_true


def _get_gateway_host(cluster: Manifest) -> Iterator[str]:
    """Yield the host of a cluster's gateway, as a URL has it."""
    address = section(cluster, "status", "gateway").get("address")
    backend = read_url(url_of(address)) if address else None
    if isinstance(backend, Backend):
        yield backend.host


def _find_routes(endpoint: ModelEndpoint, hub: Cluster) -> Iterator[str]:
    """Yield the names of routes that may still send requests to the endpoint."""
    namespace, name = endpoint.key
    backend = names.endpoint_backend(namespace, name)
    routes = hub.find(HTTP_ROUTE)
    for route in routes.by("namespace", namespace) if routes else ():
        if backend in backends(route) or is_unseen(route):
            yield route["metadata"]["name"]


def _map_from_gateway(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return all endpoints, if a field of the hub gateway that they depend on has changed."""
    if key_of(change.latest) != HUB_GATEWAY:
        return ()
    # the data plane, TLS, and the address that endpoints must not lead to
    old, new = (
        (manifest["spec"].get("backend"), manifest["spec"].get("tls"), section(manifest, "status").get("address"))
        if manifest
        else None
        for manifest in (change.old, change.new)
    )
    return everyone(ENDPOINTS)(change, hub) if old != new else ()


def _map_from_route(change: Change, hub: Cluster) -> Iterator[Key]:
    """Return the endpoints in a route's namespace that are being deleted."""
    endpoints = hub.find(ENDPOINTS)
    return map(key_of, endpoints.by("terminating", key_of(change.latest).namespace) if endpoints else ())


def _index_hosts(endpoint: Manifest) -> Iterator[str]:
    """Yield the hosts of an endpoint's URL and of its present backend.

    Replicas' endpoints are included, as owner references can be forged; the plan tells them apart.
    """
    urls = {endpoint["spec"].get("url"), section(endpoint, "status", "routing").get("url")}
    parsed = (read_url(url) for url in urls if url)
    yield from {backend.host for backend in parsed if isinstance(backend, Backend)}


def _map_from_cluster(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the users' endpoints at a cluster's gateway, if its address has changed or it was opened or closed."""
    endpoints = hub.find(ENDPOINTS)
    old, new = (
        {(at, _is_closed(manifest)) for at in _get_gateway_host(manifest)} if manifest else set[tuple[str, bool]]()
        for manifest in change
    )
    hosts = {host for host, _ in old ^ new}
    return {key_of(manifest) for host in hosts for manifest in endpoints.by("outside", host)} if endpoints else ()


INDEXES: Indexes = {
    CLUSTERS: {"gateway": _get_gateway_host},
    ENDPOINTS: {
        "terminating": lambda endpoint: (key_of(endpoint).namespace,) if is_terminating(endpoint) else (),
        "outside": _index_hosts,
    },
    HTTP_ROUTE: {"namespace": lambda route: (key_of(route).namespace,)},
}
