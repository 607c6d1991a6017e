"""ModelEndpoint: what to read and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from modelplane_operator.api import names
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.clients.collection import Index
from modelplane_operator.clients.resources import (
    BACKEND,
    BACKEND_TLS_POLICY,
    ENDPOINT_SLICE,
    HTTP_ROUTE,
    HTTP_ROUTE_FILTER,
    SECRET,
    SERVICE,
    ResourceType,
    key_of,
    of,
)
from modelplane_operator.clients.secrets import Originals
from modelplane_operator.controllers.loop import Change, Clients, Controller
from modelplane_operator.controllers.reading import Cluster, applied, backends, find
from modelplane_operator.controllers.wiring import everyone, owner_of_kind
from modelplane_operator.planning.model_endpoint import Observed, plan
from modelplane_operator.planning.symptoms import is_unseen
from modelplane_operator.rendering.backend_url import Reach
from modelplane_operator.rendering.inference_gateway import front_door

ENDPOINTS = of(ModelEndpoint)
GATEWAYS = of(InferenceGateway)
FRONT_DOOR = Key("", names.DEFAULT_GATEWAY)
CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND_TLS_POLICY, BACKEND, HTTP_ROUTE_FILTER)


def controller(reach: Reach, originals: Originals) -> Controller[ModelEndpoint, Observed]:
    """The controller, given where endpoints may lead and how Secrets are read."""

    async def observe(endpoint: ModelEndpoint, clients: Clients) -> Observed:
        front, policies, credentials = (
            find(clients.hub, GATEWAYS, FRONT_DOOR),
            clients.hub.find(BACKEND_TLS_POLICY),
            endpoint.spec.credentials,
        )
        secret = Key(endpoint.key.namespace, credentials.secret_ref.name) if credentials else None
        return Observed(
            endpoint,
            tuple(applied(clients.hub, CHILDREN, endpoint.metadata.uid or "")),
            front_door(InferenceGateway.parse(front) if front else None).plane,
            reach,
            tls_policies=policies is not None and policies.served,
            secret=await originals.find(SECRET, secret) if secret else None,
            recheck=originals.recheck,
            routes=tuple(_routes(endpoint, clients.hub)) if endpoint.metadata.deletion_timestamp else (),
            now=clients.now(),
        )

    woken_by = {
        GATEWAYS: _behind,
        HTTP_ROUTE: _leaving,
        **dict.fromkeys(CHILDREN, owner_of_kind(ModelEndpoint.definition.kind)),
    }
    return Controller(ModelEndpoint, observe, plan, woken_by=woken_by)


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
    if key_of(change.latest) != FRONT_DOOR:
        return ()
    before, after = (one["spec"].get("backend") if one else None for one in (change.old, change.new))
    return everyone(ENDPOINTS)(change, hub) if before != after else ()


def _leaving(change: Change, hub: Cluster) -> Iterator[Key]:
    """The endpoints of a route's namespace that wait to be let go."""
    endpoints = hub.find(ENDPOINTS)
    return map(key_of, endpoints.by("going", key_of(change.latest).namespace) if endpoints else ())


def _going(endpoint: Manifest) -> Iterator[str]:
    if endpoint["metadata"].get("deletionTimestamp"):
        yield key_of(endpoint).namespace


def _namespace(route: Manifest) -> Iterator[str]:
    yield key_of(route).namespace


INDEXES: Mapping[ResourceType, Mapping[str, Index]] = {
    ENDPOINTS: {"going": _going},
    HTTP_ROUTE: {"namespace": _namespace},
}
