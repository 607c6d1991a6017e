"""The controller of ModelService: observes endpoints, Secrets and responses, and maps changes to services.

Services and endpoints find each other by one label: an endpoint is indexed by each of its labels, an entry of a service
by the first of its selector. Candidates whose other labels differ are skipped. So neither side scans more objects than
necessary. Replicas are found in the same way, for services without endpoints that wait for a replica's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.condition_types import Ready
from kubeloop.conditions import condition, gateways_of
from kubeloop.errors import Forbidden
from kubeloop.loop import Change, Clients, Controller, Indexes, Mapper
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, find, list_applied
from kubeloop.resource import of
from kubeloop.types import (
    BACKEND,
    ENDPOINT_SLICE,
    HTTP_ROUTE,
    MIDDLEWARE,
    NAMESPACE,
    SECRET,
    SECURITY_POLICY,
    SERVICE,
    ResourceType,
    type_of,
)
from kubeloop.wiring import begins, everyone, owner_of_kind
from modelplane_operator.api import Kind, labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint, RoutingReady
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.model_service import EndpointsResolved, ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.endpoint.backend_url import Backend, read_url
from modelplane_operator.routing.gateway.render import KEYS, hub_gateway, models_url
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.answering import evaluate
from modelplane_operator.routing.service.api_keys import PATHS, required_secrets, signing_key
from modelplane_operator.routing.service.api_routes import decisive
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.routing.service.counters import GatewayCounters
from modelplane_operator.routing.service.plan import REQUIRED_CONDITIONS, Observed, plan
from modelplane_operator.routing.service.probe import Asker, ServiceAddress
from modelplane_operator.routing.service.selection import Neighbours, state
from modelplane_operator.routing.service.weights import match_selectors, places
from modelplane_operator.world import OnChecked, ignore_count

CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND, MIDDLEWARE, SECURITY_POLICY, HTTP_ROUTE)
WORK = 2_000  # replicas scanned for one change of an endpoint, for services without endpoints
MANY = 64  # entries of a service beyond which a changed endpoint is not matched here; the service is reconciled
GATEWAY = Key("", names.DEFAULT_GATEWAY)
KUBE_SYSTEM = Key("", "kube-system")

Labels = Mapping[str, str]


class ServiceCheck(NamedTuple):
    """The request that checks a service."""

    way: ServiceAddress
    """The address of the service."""
    guarded: bool
    """True if the gateway should require an API key."""
    costs: bool = False
    """True if the request may reach a provider outside, which may count it."""


def _build_index_key(namespace: str, selector: Labels) -> tuple[str, ...]:
    """Return the key in the index under which endpoints with these labels are found."""
    return (namespace, *min(selector.items())) if selector else (namespace,)


def _index_labels(manifest: Manifest) -> Iterator[Hashable]:
    """Yield the keys in the index of an object: its namespace, and each of its labels."""
    namespace = key_of(manifest).namespace
    yield (namespace,)
    for label in labels_of(manifest).items():
        yield (namespace, *label)


def _list_selectors(service: Manifest) -> Iterator[Labels]:
    """Return the selectors of a service's entries."""
    entries: list[dict[str, Any]] = service["spec"].get("endpoints") or []
    return (cast(Labels, entry["selector"]["matchLabels"]) for entry in entries)


def _index_without_endpoints(service: Manifest) -> Iterator[Hashable]:
    """Yield the namespace of a service whose status says that it has no endpoints."""
    conditions = entries(service, "status", "conditions")
    if any(item.get("reason") == EndpointsResolved.NO_ENDPOINTS.reason for item in conditions):
        yield key_of(service).namespace


INDEXES: Indexes = {
    of(ModelDeployment): {"namespace": lambda deployment: (key_of(deployment).namespace,)},
    of(ModelEndpoint): {"labelled": _index_labels},
    of(ModelReplica): {"labelled": _index_labels},
    of(ModelService): {
        "selecting": lambda service: {
            _build_index_key(key_of(service).namespace, selector) for selector in _list_selectors(service)
        },
        "lacking": _index_without_endpoints,
    },
}


ServiceChecks = Checks[ServiceCheck, GatewayAnswer]


def checks(
    asker: Asker, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = ignore_count
) -> ServiceChecks:
    """Return the checks of services through the gateway."""

    async def ask(route: ServiceCheck) -> GatewayAnswer:
        """Send one request to a service."""
        return await asker.ask(route.way)

    return Checks(
        of(ModelService),
        ask,
        failed=lambda route, answer: evaluate(answer, guarded=route.guarded)[0].status != "True",
        wake=wake,
        is_steady=lambda route, _: asker.is_unreachable(route.way),
        costs=lambda route: route.costs,
        group=lambda route: (*route.way.gateway, route.guarded),  # those that have the key service in common, too
        is_shared=lambda route, answer: not answer.status or (route.guarded and not answer.unrouted),
        on_checked=on_checked,
    )


def controller(
    referenced: ReferencedObjects,
    keys: tuple[str, int] = KEYS,
    asking: ServiceChecks | None = None,
    counters: GatewayCounters | None = None,
) -> Controller[ModelService, Observed]:
    """Return the controller.

    `referenced` reads Secrets. `keys`: host and port of the key service. `asking` checks services through the gateway.
    `counters` has what the gateway counts of their requests.
    """

    async def observe(service: ModelService, clients: Clients) -> Observed:
        """Return a service with its endpoints, Secrets, replicas and the results of requests."""
        endpoints = tuple(map(ModelEndpoint.parse, select_endpoints(service, clients.hub)))
        gateway = find(clients.hub, of(InferenceGateway), GATEWAY)
        parsed_gateway = InferenceGateway.parse(gateway) if gateway else None
        refs = [endpoint.spec.credentials.secret_ref for endpoint in endpoints if endpoint.spec.credentials]
        required = required_secrets(service, hub_gateway(parsed_gateway).auth) or ()
        secrets: dict[str, Manifest | None] = {}
        forbidden: dict[str, str] = {}
        for name in sorted({*required, *(ref.name for ref in refs)}):
            entries = None if name in required else frozenset(ref.key for ref in refs if ref.name == name)
            try:
                secret_key, waiting = Key(service.key.namespace, name), (of(ModelService), service.key)
                secrets[name] = await referenced.find(
                    SECRET,
                    secret_key,
                    entries,
                    waiting=waiting,
                    needed=entries or frozenset(),
                    follow=name in required,  # without its API keys, clients are rejected at once
                )
            # not an error of the reconcile: the guard is written anyway, and the key service reads the keys
            except Forbidden as error:
                forbidden[name] = str(error)
        children = tuple(list_applied(clients.hub, CHILDREN, service.metadata.uid or "", (service.key.namespace,)))
        kube_system = find(clients.hub, NAMESPACE, KUBE_SYSTEM)  # its uid identifies this hub
        return Observed(
            service,
            endpoints,
            {name: secret for name, secret in secrets.items() if secret},
            parsed_gateway,
            children,
            referenced.recheck,
            clients.now(),
            keys,
            forbidden,
            kube_system["metadata"]["uid"] if kube_system else "",
            _find_result(service, endpoints, parsed_gateway, children, asking) if asking and endpoints else None,
            None if endpoints else neighbours(service, clients.hub),
            dict(_find_replicas(endpoints, clients.hub)),
            signing_key(find(clients.hub, SECRET, PATHS)),
            counters.traffic.describe(service.key) if counters else "",
        )

    watches: dict[ResourceType, Mapper] = {
        of(ModelEndpoint): _map_from_endpoint,
        of(ModelReplica): _on_replica,
        of(ModelService): begins(_index_without_endpoints),
        of(InferenceGateway): _map_from_gateway,
        SECRET: _on_signing,
        **dict.fromkeys(CHILDREN, owner_of_kind(ModelService.definition.kind)),
    }
    return Controller(
        ModelService,
        observe,
        plan,
        sums_up=True,
        watches=watches,
        indexes=INDEXES,
        listeners=tuple(source.add_event_handlers for source in (asking, counters) if source),
        while_leading=(referenced.run, *(source.run for source in (asking, counters) if source)),
    )


def _find_result(
    service: ModelService,
    endpoints: Iterable[ModelEndpoint],
    gateway: InferenceGateway | None,
    children: Iterable[Manifest],
    asking: ServiceChecks,
) -> Checked[GatewayAnswer] | None:
    """Return the results of checking the service at its present address; None while it has none."""
    address, base_url = (gateway.status.address, models_url(gateway)) if gateway and gateway.status else (None, None)
    backend = read_url(base_url) if base_url else None
    if gateway is None or address is None or not isinstance(backend, Backend) or service.metadata.deletion_timestamp:
        asking.forget(service.key)
        return None
    address_of_service = ServiceAddress(
        address, backend.scheme, backend.host, backend.port, names.service_path(*service.key)
    )
    guarded = required_secrets(service, hub_gateway(gateway).auth) is not None
    routings = (endpoint.status.routing for endpoint in endpoints if endpoint.status)
    costs = not guarded and any(routing.leads_to != "Replica" for routing in routings if routing)
    # the versions of the service's routes and policies, with the conditions that gateways report on them
    revision = tuple(
        sorted(
            (
                key_of(child),
                type_of(child).kind,
                child["metadata"].get("uid"),
                child["metadata"].get("generation"),
                tuple(
                    (reported["type"], reported["status"], str(reported.get("observedGeneration")))
                    for item in gateways_of(child)
                    for reported in entries(item, "conditions")
                ),
            )
            for child in children
            if type_of(child) in REQUIRED_CONDITIONS
        )
    )
    return asking.find(service.key, ServiceCheck(address_of_service, guarded, costs), revision)


def select_endpoints(service: ModelService, hub: Cluster, kind: Kind = ModelEndpoint) -> Sequence[Manifest]:
    """Return the endpoints that the service's entries select, or the replicas with those labels, each once."""
    informer = hub.find(of(kind))
    if informer is None:
        return ()
    selectors = [entry.selector.match_labels for entry in service.spec.endpoints]
    index_keys = {_build_index_key(service.key.namespace, selector) for selector in selectors}
    keys = sorted({key for index in index_keys for key in informer.keys_by("labelled", index)})
    candidates = [manifest for key in keys if (manifest := informer.get(key)) is not None]
    return [candidates[index] for index in _match_any(selectors, [*map(labels_of, candidates)])]


def _match_any(selectors: Iterable[Labels], carried: Sequence[Labels]) -> list[int]:
    """Return the indexes of objects that match any of the selectors."""
    chosen = 0
    for bits in match_selectors(selectors, carried):
        chosen |= bits
    return [*places(chosen)]


def is_made(service: ModelService, hub: Cluster) -> bool:
    """True if a ModelDeployment in the namespace has, or will have, endpoints that the service selects."""
    deployments = hub.find(of(ModelDeployment))
    selectors = [entry.selector.match_labels for entry in service.spec.endpoints]
    same_namespace = deployments.by("namespace", service.key.namespace) if deployments else ()
    # the labels of the deployments' endpoints, except those that depend on a replica
    endpoint_labels = [
        {**section(deployment, "spec", "template", "metadata", "labels"), labels.DEPLOYMENT: key_of(deployment).name}
        for deployment in same_namespace
    ]
    return bool(_match_any(selectors, endpoint_labels))


def neighbours(service: ModelService, hub: Cluster) -> Neighbours:
    """Return the replicas or endpoints in the namespace of a service that selects no endpoint."""
    if replicas := select_endpoints(service, hub, ModelReplica):
        return Neighbours(replicas=tuple((key_of(replica).name, state(replica)) for replica in replicas))
    endpoints = hub.find(of(ModelEndpoint))
    same_namespace = endpoints.by("labelled", (service.key.namespace,)) if endpoints else ()
    return Neighbours(endpoints=tuple(map(labels_of, same_namespace)))


def _find_replicas(endpoints: Iterable[ModelEndpoint], hub: Cluster) -> Iterator[tuple[Key, Manifest]]:
    """Yield the replica of each endpoint that leads to one."""
    for endpoint in endpoints:
        routing = endpoint.status.routing if endpoint.status else None
        replica = find(hub, of(ModelReplica), endpoint.key) if routing and routing.leads_to == "Replica" else None
        if replica is not None:
            yield endpoint.key, replica


def _on_replica(change: Change, hub: Cluster) -> Iterator[Key]:
    """Map a changed replica to services that wait for its endpoint, or show its API routes."""
    yield from _find_waiting_services(change, hub)
    services = hub.find(of(ModelService))
    if services is not None and change.old and change.new and decisive(change.old) != decisive(change.new):
        yield from _find_selecting_services(change.new, services)


def _find_waiting_services(change: Change, hub: Cluster) -> Iterator[Key]:
    """Yield services without endpoints that wait for a replica's, if its state has changed."""
    old, new = ((labels_of(replica), state(replica)) if replica else None for replica in change)
    if old == new or (services := hub.find(of(ModelService))) is None:
        return
    waiting = services.keys_by("lacking", key_of(change.latest).namespace)
    for replica in filter(None, change) if waiting else ():
        yield from (key for key in _find_selecting_services(replica, services) if key in waiting)


def _map_from_endpoint(change: Change, hub: Cluster) -> Iterator[Key]:
    """Yield the services that select an endpoint, or did, if a field that routes depend on has changed."""
    services = hub.find(of(ModelService))
    if services is None or (
        change.old and change.new and _get_relevant_fields(change.old) == _get_relevant_fields(change.new)
    ):
        return
    if not (change.old and change.new) or labels_of(change.old) != labels_of(change.new):
        yield from _find_without_replicas(services.by("lacking", key_of(change.latest).namespace), hub)
    for endpoint in filter(None, change):
        yield from _find_selecting_services(endpoint, services)


def _find_selecting_services(manifest: Manifest, services: Informer) -> Iterator[Key]:
    """Yield the services that select an object by its labels."""
    carried = labels_of(manifest).items()
    for index_key in _index_labels(manifest):
        for service in services.by("selecting", index_key):
            selectors = tuple(_list_selectors(service))
            if len(selectors) > MANY or any(selector.items() <= carried for selector in selectors):
                yield key_of(service)


def _find_without_replicas(services: Iterable[Manifest], hub: Cluster) -> Iterator[Key]:
    """Yield the services whose selectors match no replica, so that their status shows endpoints' labels.

    Services beyond the limit of replicas to scan are included.
    """
    replicas, budget = hub.find(of(ModelReplica)), WORK
    for service in services:
        key = key_of(service)
        for selector in _list_selectors(service) if budget > 0 else ():
            places = [(key.namespace, *label) for label in selector.items()] or [(key.namespace,)]
            candidates = sorted(
                (replicas.keys_by("labelled", index_key) if replicas else () for index_key in places), key=len
            )
            budget -= 1 + len(candidates[0])
            if any(all(replica_key in other_keys for other_keys in candidates[1:]) for replica_key in candidates[0]):
                break
        else:
            yield key


def _get_relevant_fields(endpoint: Manifest) -> tuple[object, ...]:
    """Return the fields of an endpoint that services depend on."""
    terminating, status = is_terminating(endpoint), endpoint.get("status", {})
    routing_ready = condition(endpoint, RoutingReady.__name__)
    rejection = routing_ready.message if routing_ready.reason == RoutingReady.INVALID_URL.reason else ""
    ready = condition(endpoint, Ready.__name__)
    unreachable = ready.message if ready.reason == Ready.UNREACHABLE.reason else ""
    return labels_of(endpoint), endpoint["spec"], terminating, status.get("routing"), rejection, unreachable


def _map_from_gateway(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return all services, if a field of the hub gateway that they depend on has changed."""
    if key_of(change.latest) != GATEWAY:
        return ()
    return (
        everyone(of(ModelService))(change, hub)
        if _get_gateway_fields(change.old) != _get_gateway_fields(change.new)
        else ()
    )


def _on_signing(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return all services, if the key that signs paths of the key service has changed."""
    if key_of(change.latest) != PATHS or signing_key(change.old) == signing_key(change.new):
        return ()
    return everyone(of(ModelService))(change, hub)


def _get_gateway_fields(gateway: Manifest | None) -> tuple[object, ...] | None:
    """Return the fields of the hub gateway that services depend on."""
    if gateway is None:
        return None
    spec, status = gateway["spec"], gateway.get("status", {})
    return spec.get("backend"), spec.get("tls"), spec.get("auth"), status.get("address"), status.get("url")
