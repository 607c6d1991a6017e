"""Render a ModelService's objects on the hub: routes over the endpoints that it selects.

Without a usable endpoint the route stays, and leads to a Service without endpoints: gateways answer 503 for it, which
tells clients to retry. For a rule without backends they must answer 500.

A service over more endpoints than a rule may have gets rules for groups of them (`weights.py`), at their own paths, and
objects by which the gateway calls itself. The data plane renders the rules.
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
from modelplane_operator.routing.service.weights import WeightedEndpoint, group_backends

MAX_RULES = 16  # the Gateway API's limit for a route
LONGEST_PATH = 1024  # the Gateway API's limit for a rewritten path


def service_url(service: Key, models: str) -> str:
    """Return the URL of a service, to which clients append the engine's path; `models`: the beginning of all URLs."""
    return f"{models}{names.service_path(*service).rstrip('/')}"


def render_model_service(
    service: ModelService,
    shared: Sequence[WeightedEndpoint],
    door: HubGateway = HubGateway(),  # noqa: B008 - frozen
) -> tuple[Manifest, ...]:
    """Return the routes of a service and the Services that they need; the route for clients comes last.

    So the gateway knows each group before a route leads to it.
    """
    plane, groups = door.plane, group_backends(shared)
    secrets = api_keys.required_secrets(service, door.auth)
    mark = door.mark if any(share.target.unproven for share in shared) else ""
    guarded = secrets is not None
    rules = plane.rules(service.key, groups, relay_port=plane.BALANCER_PORT, mark=mark, guarded=guarded)
    # If clients may use https only, their rule has its own route, since the gateway calls itself by http.
    client_rules = [[next(rules)]] if door.tls_only else []
    max_rules = MAX_RULES - MAX_RULES // MOST_MATCHES if mark else MAX_RULES
    rule_sets = [*client_rules, *iter(lambda: list(islice(rules, max_rules)), [])]
    if mark:
        nowhere = fallback(service.key)
        rule_sets = [[*refusals(mark, rule_set, nowhere), *rule_set] for rule_set in rule_sets]
    if guarded:
        rule_sets = [plane.add_guards(service.key, rule_set) for rule_set in rule_sets]
    routes = [_render_route(service, index, rule_set, door) for index, rule_set in enumerate(rule_sets)]
    route_names = [route["metadata"]["name"] for route in routes]
    key_path = api_keys.path_of(service.key.namespace, secrets or (), door.signing)
    guard = plane.render_guard(service, key_path, route_names, door.keys) if guarded else ()
    loopback = plane.render_loopback(service) if plane.comes_back(groups) else ()
    # Gateways answer 503 for a Service without endpoints; without an EndpointSlice, Traefik considers it an error: 500.
    name, http_port = names.service_route(*service.key), port("http", PORT)
    empty_service = (render_service(on_hub(service, name), [http_port]), render_slice(service, name, "IPv4", http_port))
    return (*empty_service, *loopback, *guard, *reversed(routes))


def _render_route(service: ModelService, index: int, rules: list[Manifest], door: HubGateway) -> Manifest:
    """Return an HTTPRoute with a part of the rules."""
    port = {"port": door.plane.PORT if index else door.plane.TLS_PORT} if door.tls_only else {}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": on_hub(service, names.route_part(names.service_route(*service.key), index)),
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
