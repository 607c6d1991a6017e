"""ModelService: what to read and who wakes it.

A service is woken by endpoints that it selects, and finds them, by one label each: an endpoint is indexed under all of
its labels, an entry of a service under the first of those that it asks for. What one of the other labels rules out is
passed over. So neither looks at more of the other kind than it has to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from modelplane_operator.api import names
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.clients.collection import Index
from modelplane_operator.clients.errors import Forbidden
from modelplane_operator.clients.resources import (
    BACKEND,
    ENDPOINT_SLICE,
    HTTP_ROUTE,
    MIDDLEWARE,
    NAMESPACE,
    SECRET,
    SECURITY_POLICY,
    SERVICE,
    ResourceType,
    key_of,
    labels_of,
    of,
)
from modelplane_operator.clients.secrets import Originals
from modelplane_operator.controllers.loop import Change, Clients, Controller, Waker
from modelplane_operator.controllers.reading import Cluster, applied, find
from modelplane_operator.controllers.wiring import everyone, owner_of_kind
from modelplane_operator.planning.model_service import Observed, plan
from modelplane_operator.rendering.api_keys import asked_of
from modelplane_operator.rendering.inference_gateway import KEYS, front_door
from modelplane_operator.rendering.shares import matched, places

CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND, MIDDLEWARE, SECURITY_POLICY, HTTP_ROUTE)
MANY = 64  # entries of a service, that are not looked through for every change of an endpoint: it looks itself
GATEWAY = Key("", names.DEFAULT_GATEWAY)
KUBE_SYSTEM = Key("", "kube-system")

Labels = Mapping[str, str]


def _place(namespace: str, wanted: Labels) -> tuple[str, ...]:
    """Where the endpoints that carry these labels are among others in the index."""
    return (namespace, *min(wanted.items())) if wanted else (namespace,)


def _labelled(endpoint: Manifest) -> Iterator[Hashable]:
    namespace = key_of(endpoint).namespace
    yield (namespace,)
    for label in labels_of(endpoint).items():
        yield (namespace, *label)


def _asked_for(service: Manifest) -> Iterator[Labels]:
    entries: list[dict[str, Any]] = service["spec"].get("endpoints") or []
    return (cast(Labels, entry["selector"]["matchLabels"]) for entry in entries)


def _selecting(service: Manifest) -> Iterator[Hashable]:
    return (_place(key_of(service).namespace, wanted) for wanted in _asked_for(service))


INDEXES: Final[Mapping[ResourceType, Mapping[str, Index]]] = {
    of(ModelEndpoint): {"labelled": _labelled},
    of(ModelService): {"selecting": lambda service: {*_selecting(service)}},
}


def controller(originals: Originals, keys: tuple[str, int] = KEYS) -> Controller[ModelService, Observed]:
    """The controller, given how Secrets are read, and host and port of the key service."""

    async def observe(service: ModelService, clients: Clients) -> Observed:
        endpoints = tuple(map(ModelEndpoint.parse, _selected(service, clients.hub)))
        gateway = find(clients.hub, of(InferenceGateway), GATEWAY)
        known = InferenceGateway.parse(gateway) if gateway else None
        refs = [one.spec.credentials.secret_ref for one in endpoints if one.spec.credentials]
        asked = asked_of(service, front_door(known).auth) or ()
        secrets: dict[str, Manifest | None] = {}
        forbidden: dict[str, str] = {}
        for name in sorted({*asked, *(ref.name for ref in refs)}):
            entries = None if name in asked else frozenset(ref.key for ref in refs if ref.name == name)
            try:
                secrets[name] = await originals.find(SECRET, Key(service.key.namespace, name), entries)
            except Forbidden as error:  # an answer like another: the guard is written, whoever reads the keys
                forbidden[name] = str(error)
        return Observed(
            service,
            endpoints,
            {name: secret for name, secret in secrets.items() if secret},
            known,
            tuple(applied(clients.hub, CHILDREN, service.metadata.uid or "", (service.key.namespace,))),
            originals.recheck,
            clients.now(),
            keys,
            forbidden,
            _uid(clients.hub),
        )

    woken_by: dict[ResourceType, Waker] = {
        of(ModelEndpoint): _selectors,
        of(InferenceGateway): _behind,
        **dict.fromkeys(CHILDREN, owner_of_kind(ModelService.definition.kind)),
    }
    return Controller(ModelService, observe, plan, woken_by=woken_by)


def _uid(hub: Cluster) -> str:
    """What tells this hub from every other."""
    found = find(hub, NAMESPACE, KUBE_SYSTEM)
    return found["metadata"]["uid"] if found else ""


def _selected(service: ModelService, hub: Cluster) -> Iterable[Manifest]:
    """The endpoints that the service's entries select, each once."""
    collection = hub.find(of(ModelEndpoint))
    if collection is None:
        return ()
    wanted = [entry.selector.match_labels for entry in service.spec.endpoints]
    near = {_place(service.key.namespace, each) for each in wanted}
    keys = sorted({key for place in near for key in collection.keys_by("labelled", place)})
    endpoints = [endpoint for key in keys if (endpoint := collection.get(key)) is not None]
    chosen = 0
    for bits in matched(wanted, [*map(labels_of, endpoints)]):
        chosen |= bits
    return [endpoints[place] for place in places(chosen)]


def _selectors(change: Change, hub: Cluster) -> Iterator[Key]:
    """The services that select an endpoint, or did, when what routes are made of has changed."""
    services = hub.find(of(ModelService))
    if services is None or (change.old and change.new and _routed(change.old) == _routed(change.new)):
        return
    for endpoint in filter(None, (change.old, change.new)):
        carried = labels_of(endpoint).items()
        for place in _labelled(endpoint):
            for service in services.by("selecting", place):
                asked = tuple(_asked_for(service))
                if len(asked) > MANY or any(wanted.items() <= carried for wanted in asked):
                    yield key_of(service)


def _routed(endpoint: Manifest) -> tuple[object, ...]:
    going, status = endpoint["metadata"].get("deletionTimestamp"), endpoint.get("status", {})
    return labels_of(endpoint), endpoint["spec"], going, status.get("routing")


def _behind(change: Change, hub: Cluster) -> Iterable[Key]:
    """All services, when they are to be reached in another way."""
    if key_of(change.latest) != GATEWAY:
        return ()
    return everyone(of(ModelService))(change, hub) if _front(change.old) != _front(change.new) else ()


def _front(gateway: Manifest | None) -> tuple[object, ...] | None:
    if gateway is None:
        return None
    spec, status = gateway["spec"], gateway.get("status", {})
    return spec.get("backend"), spec.get("tls"), spec.get("auth"), status.get("address"), status.get("url")
