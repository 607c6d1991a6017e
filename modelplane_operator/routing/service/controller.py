"""ModelService: what to read and who wakes it.

A service is woken by endpoints that it selects, and finds them, by one label each: an endpoint is indexed under all of
its labels, an entry of a service under the first of those that it asks for. What one of the other labels rules out is
passed over. So neither looks at more of the other kind than it has to. Replicas are found in the same way, whose
endpoints a service without any waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from kubeloop.cache.informer import Informer
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.conditions import condition, gateways_of
from kubeloop.errors import Forbidden
from kubeloop.loop import Change, Clients, Controller, Indexes, Mapper
from kubeloop.objects import Key, Manifest, entries, is_terminating, key_of, labels_of, section
from kubeloop.reading import Cluster, applied, find
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
from modelplane_operator.routing.service.answering import judge
from modelplane_operator.routing.service.api_keys import PATHS, asked_of, signing_of
from modelplane_operator.routing.service.api_routes import decisive
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.routing.service.plan import JUDGED, Observed, plan
from modelplane_operator.routing.service.probe import Asker, ServiceAddress
from modelplane_operator.routing.service.selection import Neighbours, state
from modelplane_operator.routing.service.weights import matched, places
from modelplane_operator.world import OnChecked, uncounted

CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND, MIDDLEWARE, SECURITY_POLICY, HTTP_ROUTE)
WORK = 2_000  # replicas that are looked at for one change of an endpoint, on behalf of services without any
MANY = 64  # entries of a service, that are not looked through for every change of an endpoint: it looks itself
GATEWAY = Key("", names.DEFAULT_GATEWAY)
KUBE_SYSTEM = Key("", "kube-system")

Labels = Mapping[str, str]


class ServiceCheck(NamedTuple):
    """What of a service is asked."""

    way: ServiceAddress
    guarded: bool
    """Whether the gateway is to ask for an API key."""


def _place(namespace: str, wanted: Labels) -> tuple[str, ...]:
    """Where the endpoints that carry these labels are among others in the index."""
    return (namespace, *min(wanted.items())) if wanted else (namespace,)


def _labelled(manifest: Manifest) -> Iterator[Hashable]:
    namespace = key_of(manifest).namespace
    yield (namespace,)
    for label in labels_of(manifest).items():
        yield (namespace, *label)


def _asked_for(service: Manifest) -> Iterator[Labels]:
    entries: list[dict[str, Any]] = service["spec"].get("endpoints") or []
    return (cast(Labels, entry["selector"]["matchLabels"]) for entry in entries)


def _selecting(service: Manifest) -> Iterator[Hashable]:
    return (_place(key_of(service).namespace, wanted) for wanted in _asked_for(service))


def _without_endpoints(service: Manifest) -> Iterator[Hashable]:
    said = entries(service, "status", "conditions")
    if any(one.get("reason") == EndpointsResolved.NO_ENDPOINTS.reason for one in said):
        yield key_of(service).namespace


INDEXES: Indexes = {
    of(ModelDeployment): {"namespace": lambda deployment: (key_of(deployment).namespace,)},
    of(ModelEndpoint): {"labelled": _labelled},
    of(ModelReplica): {"labelled": _labelled},
    of(ModelService): {"selecting": lambda service: {*_selecting(service)}, "lacking": _without_endpoints},
}


ServiceChecks = Checks[ServiceCheck, GatewayAnswer]


def checks(asker: Asker, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = uncounted) -> ServiceChecks:
    """What asks services through the gateway."""

    async def ask(route: ServiceCheck) -> GatewayAnswer:
        return await asker.ask(route.way)

    return Checks(
        of(ModelService),
        ask,
        failed=lambda route, answer: judge(answer, guarded=route.guarded)[0].status != "True",
        wake=wake,
        is_steady=lambda route, _: asker.is_unreachable(route.way),
        on_checked=on_checked,
    )


def controller(
    referenced: ReferencedObjects, keys: tuple[str, int] = KEYS, asking: ServiceChecks | None = None
) -> Controller[ModelService, Observed]:
    """The controller, given how Secrets are read, host and port of the key service, and what asks services."""

    async def observe(service: ModelService, clients: Clients) -> Observed:
        endpoints = tuple(map(ModelEndpoint.parse, selected(service, clients.hub)))
        gateway = find(clients.hub, of(InferenceGateway), GATEWAY)
        known = InferenceGateway.parse(gateway) if gateway else None
        refs = [one.spec.credentials.secret_ref for one in endpoints if one.spec.credentials]
        asked = asked_of(service, hub_gateway(known).auth) or ()
        secrets: dict[str, Manifest | None] = {}
        forbidden: dict[str, str] = {}
        for name in sorted({*asked, *(ref.name for ref in refs)}):
            entries = None if name in asked else frozenset(ref.key for ref in refs if ref.name == name)
            try:
                place, waiting = Key(service.key.namespace, name), (of(ModelService), service.key)
                secrets[name] = await referenced.find(
                    SECRET, place, entries, waiting=waiting, needed=entries or frozenset()
                )
            except Forbidden as error:  # an answer like another: the guard is written, whoever reads the keys
                forbidden[name] = str(error)
        children = tuple(applied(clients.hub, CHILDREN, service.metadata.uid or "", (service.key.namespace,)))
        return Observed(
            service,
            endpoints,
            {name: secret for name, secret in secrets.items() if secret},
            known,
            children,
            referenced.recheck,
            clients.now(),
            keys,
            forbidden,
            _uid(clients.hub),
            _asked(service, known, children, asking) if asking and endpoints else None,
            None if endpoints else neighbours(service, clients.hub),
            dict(_replicas(endpoints, clients.hub)),
            signing_of(find(clients.hub, SECRET, PATHS)),
        )

    watches: dict[ResourceType, Mapper] = {
        of(ModelEndpoint): _selectors,
        of(ModelReplica): _on_replica,
        of(ModelService): begins(_without_endpoints),
        of(InferenceGateway): _behind,
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
        listeners=(asking.listen,) if asking else (),
        while_leading=(referenced.run, *((asking.run,) if asking else ())),
    )


def _asked(
    service: ModelService, gateway: InferenceGateway | None, children: Iterable[Manifest], asking: ServiceChecks
) -> Checked[GatewayAnswer] | None:
    """What requests have met with by the way that is there now; None while there is none."""
    address, models = (gateway.status.address, models_url(gateway)) if gateway and gateway.status else (None, None)
    place = read_url(models) if models else None
    if gateway is None or address is None or not isinstance(place, Backend) or service.metadata.deletion_timestamp:
        asking.forget(service.key)
        return None
    way = ServiceAddress(address, place.scheme, place.host, place.port, names.service_path(*service.key))
    guarded = asked_of(service, hub_gateway(gateway).auth) is not None
    return asking.find(service.key, ServiceCheck(way, guarded), _revision(children))


def _revision(children: Iterable[Manifest]) -> Hashable:
    """What the gateway is asked for, and what it has said of that."""
    return tuple(
        sorted(
            (key_of(one), type_of(one).kind, one["metadata"].get("uid"), one["metadata"].get("generation"), _said(one))
            for one in children
            if type_of(one) in JUDGED
        )
    )


def _said(child: Manifest) -> tuple[tuple[str, ...], ...]:
    told = (each for one in gateways_of(child) for each in entries(one, "conditions"))
    return tuple((one["type"], one["status"], str(one.get("observedGeneration"))) for one in told)


def _uid(hub: Cluster) -> str:
    """What tells this hub from every other."""
    found = find(hub, NAMESPACE, KUBE_SYSTEM)
    return found["metadata"]["uid"] if found else ""


def selected(service: ModelService, hub: Cluster, kind: Kind = ModelEndpoint) -> Sequence[Manifest]:
    """The endpoints that the service's entries select, or the replicas with their labels, each once."""
    informer = hub.find(of(kind))
    if informer is None:
        return ()
    wanted = [entry.selector.match_labels for entry in service.spec.endpoints]
    near = {_place(service.key.namespace, each) for each in wanted}
    keys = sorted({key for place in near for key in informer.keys_by("labelled", place)})
    found = [one for key in keys if (one := informer.get(key)) is not None]
    return [found[place] for place in _chosen(wanted, [*map(labels_of, found)])]


def _chosen(wanted: Iterable[Labels], carried: Sequence[Labels]) -> list[int]:
    """The places of those that carry all labels of some selector."""
    chosen = 0
    for bits in matched(wanted, carried):
        chosen |= bits
    return [*places(chosen)]


def is_made(service: ModelService, hub: Cluster) -> bool:
    """Whether a ModelDeployment beside it makes endpoints that it selects, sooner or later."""
    deployments = hub.find(of(ModelDeployment))
    wanted = [entry.selector.match_labels for entry in service.spec.endpoints]
    beside = deployments.by("namespace", service.key.namespace) if deployments else ()
    return bool(_chosen(wanted, [*map(_given, beside)]))


def _given(deployment: Manifest) -> Labels:
    """The labels of its endpoints, but those that say where one is."""
    users = section(deployment, "spec", "template", "metadata", "labels")
    return {**users, labels.DEPLOYMENT: key_of(deployment).name}


def neighbours(service: ModelService, hub: Cluster) -> Neighbours:
    """What there is in the namespace of a service that selects no endpoint."""
    if replicas := selected(service, hub, ModelReplica):
        return Neighbours(replicas=tuple((key_of(one).name, state(one)) for one in replicas))
    endpoints = hub.find(of(ModelEndpoint))
    beside = endpoints.by("labelled", (service.key.namespace,)) if endpoints else ()
    return Neighbours(endpoints=tuple(map(labels_of, beside)))


def _replicas(endpoints: Iterable[ModelEndpoint], hub: Cluster) -> Iterator[tuple[Key, Manifest]]:
    """Yield the replica of each endpoint that leads to one."""
    for endpoint in endpoints:
        routing = endpoint.status.routing if endpoint.status else None
        found = find(hub, of(ModelReplica), endpoint.key) if routing and routing.leads_to == "Replica" else None
        if found is not None:
            yield endpoint.key, found


def _on_replica(change: Change, hub: Cluster) -> Iterator[Key]:
    yield from _lacking(change, hub)
    services = hub.find(of(ModelService))
    if services is not None and change.old and change.new and decisive(change.old) != decisive(change.new):
        yield from _selecting_it(change.new, services)


def _lacking(change: Change, hub: Cluster) -> Iterator[Key]:
    """The services without endpoints that wait for a replica's, when it says something else of its model."""
    before, after = ((labels_of(one), state(one)) if one else None for one in change)
    if before == after or (services := hub.find(of(ModelService))) is None:
        return
    lacking = services.keys_by("lacking", key_of(change.latest).namespace)
    for one in filter(None, change) if lacking else ():
        yield from (key for key in _selecting_it(one, services) if key in lacking)


def _selectors(change: Change, hub: Cluster) -> Iterator[Key]:
    """The services that select an endpoint, or did, when what routes are made of has changed."""
    services = hub.find(of(ModelService))
    if services is None or (change.old and change.new and _routed(change.old) == _routed(change.new)):
        return
    if not (change.old and change.new) or labels_of(change.old) != labels_of(change.new):
        yield from _without_replicas(services.by("lacking", key_of(change.latest).namespace), hub)
    for endpoint in filter(None, change):
        yield from _selecting_it(endpoint, services)


def _selecting_it(one: Manifest, services: Informer) -> Iterator[Key]:
    """The services that select an object by its labels."""
    carried = labels_of(one).items()
    for place in _labelled(one):
        for service in services.by("selecting", place):
            asked = tuple(_asked_for(service))
            if len(asked) > MANY or any(wanted.items() <= carried for wanted in asked):
                yield key_of(service)


def _without_replicas(services: Iterable[Manifest], hub: Cluster) -> Iterator[Key]:
    """Those that tell of what else there is, as no replicas have their labels; and all that are too many to look at."""
    replicas, left = hub.find(of(ModelReplica)), WORK
    for service in services:
        key = key_of(service)
        for wanted in _asked_for(service) if left > 0 else ():
            places = [(key.namespace, *label) for label in wanted.items()] or [(key.namespace,)]
            near = sorted((replicas.keys_by("labelled", place) if replicas else () for place in places), key=len)
            left -= 1 + len(near[0])
            if any(all(one in others for others in near[1:]) for one in near[0]):
                break
        else:
            yield key


def _routed(endpoint: Manifest) -> tuple[object, ...]:
    terminating, status = is_terminating(endpoint), endpoint.get("status", {})
    return labels_of(endpoint), endpoint["spec"], terminating, status.get("routing"), _refused(endpoint)


def _refused(endpoint: Manifest) -> str:
    """Why nothing leads there, where waiting does not help."""
    said = condition(endpoint, RoutingReady.__name__)
    return said.message if said.reason == RoutingReady.INVALID_URL.reason else ""


def _behind(change: Change, hub: Cluster) -> Iterable[Key]:
    """All services, when they are to be reached in another way."""
    if key_of(change.latest) != GATEWAY:
        return ()
    return everyone(of(ModelService))(change, hub) if _front(change.old) != _front(change.new) else ()


def _on_signing(change: Change, hub: Cluster) -> Iterable[Key]:
    """All services, when something else signs where the key service is asked."""
    if key_of(change.latest) != PATHS or signing_of(change.old) == signing_of(change.new):
        return ()
    return everyone(of(ModelService))(change, hub)


def _front(gateway: Manifest | None) -> tuple[object, ...] | None:
    if gateway is None:
        return None
    spec, status = gateway["spec"], gateway.get("status", {})
    return spec.get("backend"), spec.get("tls"), spec.get("auth"), status.get("address"), status.get("url")
