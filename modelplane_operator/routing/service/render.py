"""What a ModelService is on the hub: a route over the endpoints that it selects.

Without an endpoint that can be used the route stays, and leads to a Service of ours that has none: gateways answer 503
for such a Service, which tells a client to try again. For a rule without backends they must answer 500.

A service over more endpoints than a rule takes has rules for groups of them (`weights.py`), under paths of their own,
and something through which the gateway calls itself. How rules are written is for its data plane to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import names
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.endpoint.headless import port, render_service, render_slice
from modelplane_operator.routing.gateway.render import HubGateway
from modelplane_operator.routing.service import api_keys
from modelplane_operator.routing.service.hops import MOST_MATCHES, refusals
from modelplane_operator.routing.service.one_pass import PORT, fallback
from modelplane_operator.routing.service.weights import WeightedEndpoint, grouped

MAX_RULES = 16  # of one route, by the Gateway API
LONGEST_PATH = 1024  # to rewrite to, by the same


def service_url(service: Key, models: str) -> str:
    """What clients append the engine's own path to, given the beginning of all models' URLs."""
    return f"{models}{names.service_path(*service).rstrip('/')}"


def render_model_service(
    service: ModelService,
    shared: Sequence[WeightedEndpoint],
    door: HubGateway = HubGateway(),  # noqa: B008 - frozen
) -> tuple[Manifest, ...]:
    """The routes of a service and the Services that they need; the route that clients meet comes last.

    So when it leads to a group, the gateway knows that group already.
    """
    plane, groups = door.plane, grouped(shared)
    secrets = api_keys.asked_of(service, door.auth)
    mark = door.mark if any(share.target.unproven for share in shared) else ""
    guarded = secrets is not None
    rules = plane.rules(service.key, groups, relay_port=plane.BALANCER_PORT, mark=mark, guarded=guarded)
    # Where clients come by https alone, their rule has a route of its own: the gateway calls itself by http.
    first = [[next(rules)]] if door.tls_only else []
    room = MAX_RULES - MAX_RULES // MOST_MATCHES if mark else MAX_RULES
    parts = [*first, *iter(lambda: list(islice(rules, room)), [])]
    if mark:
        nowhere = fallback(service.key)
        parts = [[*refusals(mark, part, nowhere), *part] for part in parts]
    if guarded:
        parts = [plane.guarded(service.key, part) for part in parts]
    routes = [_route(service, number, part, door) for number, part in enumerate(parts)]
    named = [route["metadata"]["name"] for route in routes]
    asked = api_keys.path_of(service.key.namespace, secrets or (), door.signing)
    guard = plane.render_guard(service, asked, named, door.keys) if guarded else ()
    loopback = plane.render_loopback(service) if plane.comes_back(groups) else ()
    return (*_fallback(service), *loopback, *guard, *reversed(routes))


def _fallback(service: ModelService) -> Sequence[Manifest]:
    """A Service without endpoints, for gateways to answer 503."""
    name, way = names.service_route(*service.key), port("http", PORT)
    # Without a slice Traefik takes the Service for a mistake, and answers 500.
    return render_service(on_hub(service, name), [way]), render_slice(service, name, "IPv4", way)


def _route(service: ModelService, number: int, rules: list[Manifest], door: HubGateway) -> Manifest:
    port = {"port": door.plane.PORT if number else door.plane.TLS_PORT} if door.tls_only else {}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": on_hub(service, names.route_part(names.service_route(*service.key), number)),
        "spec": {
            "parentRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": names.HUB_GATEWAY,
                    "namespace": names.SYSTEM_NAMESPACE,
                    **port,
                }
            ],
            "rules": rules,
        },
    }
