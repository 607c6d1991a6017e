"""What a ModelService is on the hub: a route over the endpoints that it selects.

Without an endpoint that can be used the route stays, and leads to a Service of ours that has none: gateways answer 503
for such a Service, which tells a client to try again. For a rule without backends they must answer 500.

A service over more endpoints than a rule takes has rules for groups of them (`shares.py`), under paths of their own,
and a Service through which the gateway calls itself. Envoy Gateway has rules of another kind (`two_passes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import assert_never

from modelplane_operator.api import names
from modelplane_operator.api.model_endpoint import AUTHORIZATION
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.rendering import api_keys, two_passes
from modelplane_operator.rendering.hops import MOST_MATCHES, marked, refusals
from modelplane_operator.rendering.inference_gateway import DataPlane, HubGateway
from modelplane_operator.rendering.model_endpoint import slice_labels
from modelplane_operator.rendering.owned import on_hub
from modelplane_operator.rendering.shares import Group, Share, Target, fitted, grouped

MAX_RULES = 16  # of one route, by the Gateway API
LONGEST_PATH = 1024  # to rewrite to, by the same
PORT = 80  # of Services of ours that lead to no endpoint


def service_prefix(service: Key, group: int = 0) -> str:
    """The path under which the hub's gateway knows a service, or a group of its endpoints; `~` is in nobody's name."""
    return f"/{service.namespace}/{service.name}~{group}/" if group else f"/{service.namespace}/{service.name}/"


def service_url(service: Key, models: str) -> str:
    """What clients append the engine's own path to, given the beginning of all models' URLs."""
    return f"{models}{service_prefix(service).rstrip('/')}"


def render_model_service(
    service: ModelService,
    shared: Sequence[Share],
    door: HubGateway = HubGateway(),  # noqa: B008 - frozen
) -> tuple[Manifest, ...]:
    """The routes of a service and the Services that they need; the route that clients meet comes last.

    So when it leads to a group, the gateway knows that group already.
    """
    groups = grouped(shared)
    secrets = api_keys.asked_of(service, door.auth)
    mark = door.mark if any(share.target.unproven for share in shared) else ""
    rules = _rules(service.key, groups, door.plane, mark=mark, guarded=secrets is not None)
    # Where clients come by https alone, their rule has a route of its own: the gateway calls itself by http.
    first = [[next(rules)]] if door.tls_only else []
    room = MAX_RULES - MAX_RULES // MOST_MATCHES if mark else MAX_RULES
    parts = [*first, *iter(lambda: list(islice(rules, room)), [])]
    if mark:
        nowhere = _reference(names.service_route(*service.key), PORT, 1)
        parts = [[*refusals(mark, part, nowhere), *part] for part in parts]
    if secrets is not None:
        parts = [api_keys.guarded(service.key, part, door) for part in parts]
    routes = [_route(service, number, part, door) for number, part in enumerate(parts)]
    named = [route["metadata"]["name"] for route in routes]
    guard = () if secrets is None else api_keys.render_guard(service, secrets, named, door)
    relay = _relay(service, door.plane) if _comes_back(groups, door.plane) else ()
    return (*_fallback(service), *relay, *guard, *reversed(routes))


def _fallback(service: ModelService) -> Iterator[Manifest]:
    """A Service without endpoints, for gateways to answer 503."""
    name = names.service_route(*service.key)
    yield _service(service, name)
    # Without a slice Traefik takes the Service for a mistake, and answers 500.
    yield _slice(service, name, "IPv4", [])


def _rules(service: Key, groups: Sequence[Group], plane: DataPlane, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    if plane.dialect == "EnvoyGateway" and groups[0].members:
        prefix, port = service_prefix(service), plane.balancer_port
        return two_passes.rules(service, groups, prefix=prefix, relay_port=port, mark=mark, guarded=guarded)
    return (_rule(service, group, plane, mark=mark, guarded=guarded) for group in groups)


def _comes_back(groups: Sequence[Group], plane: DataPlane) -> bool:
    """Whether requests pass the gateway more than once."""
    return len(groups) > 1 or (plane.dialect == "EnvoyGateway" and len(groups[0].members) > 1)


def _relay(service: ModelService, plane: DataPlane) -> Iterator[Manifest]:
    """What leads to the gateway itself. Traefik completes the name as every pod of the cluster does."""
    name, balancer = names.service_relay(*service.key), plane.load_balancer
    host, port = f"{balancer.name}.{balancer.namespace}.{plane.domain}", plane.balancer_port
    match plane.dialect:
        case "GatewayAPI":
            yield _service(service, name, port)
            yield _slice(service, name, "FQDN", [{"addresses": [host], "conditions": {"ready": True}}], port)
        case "EnvoyGateway":
            yield {
                "apiVersion": "gateway.envoyproxy.io/v1alpha1",
                "kind": "Backend",
                "metadata": on_hub(service, name),
                "spec": {"endpoints": [{"fqdn": {"hostname": host, "port": port}}]},
            }
        case _:
            assert_never(plane.dialect)


def _service(service: ModelService, name: str, number: int = PORT) -> Manifest:
    port = {"name": "http", "port": number, "targetPort": number, "protocol": "TCP", "appProtocol": "http"}
    spec = {"clusterIP": "None", "ports": [port]}  # nobody dials it: gateways read its slices
    return {"apiVersion": "v1", "kind": "Service", "metadata": on_hub(service, name), "spec": spec}


def _slice(
    service: ModelService, name: str, address_type: str, endpoints: list[Manifest], port: int = PORT
) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": on_hub(service, names.endpoint_slice(name, address_type), extra=slice_labels(name)),
        "addressType": address_type,
        "ports": [{"name": "http", "port": port, "protocol": "TCP", "appProtocol": "http"}],
        "endpoints": endpoints,
    }


def _route(service: ModelService, number: int, rules: list[Manifest], door: HubGateway) -> Manifest:
    port = {"port": door.plane.port if number else door.plane.tls_port} if door.tls_only else {}
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


def _rule(service: Key, group: Group, plane: DataPlane, *, mark: str, guarded: bool) -> Manifest:
    weights = fitted([member.weight for member in group.members])
    unchanged = service_prefix(service) if group.number else None  # the path of a group is nothing to its members
    backends = [
        _backend(service, *each, plane, unchanged=unchanged, mark=mark, guarded=guarded)
        for each in zip(group.members, weights, strict=True)
    ]
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": service_prefix(service, group.number)}}],
        "backendRefs": backends or [_reference(names.service_route(*service), PORT, 1)],
        "timeouts": {"request": "0s"},  # none: answers may stream for as long as they like
    }


def _backend(
    service: Key,
    member: Share | Group,
    weight: int,
    plane: DataPlane,
    *,
    unchanged: str | None,
    mark: str,
    guarded: bool,
) -> Manifest:
    if isinstance(member, Group):
        rewrite = _replaced(service_prefix(service, member.number))
        filters = [{"type": "URLRewrite", "urlRewrite": rewrite}]
        return {**_reference(names.service_relay(*service), plane.balancer_port, weight), "filters": filters}
    reference = _reference(names.endpoint_backend(*member.endpoint.key), member.target.backend.port, weight)
    filters = [*_rewrites(member.target, unchanged), *_headers(member.target, mark=mark, guarded=guarded)]
    return {**reference, **({"filters": filters} if filters else {})}


def _reference(name: str, port: int, weight: int) -> Manifest:
    return {"group": "", "kind": "Service", "name": name, "port": port, "weight": weight}


def _rewrites(target: Target, unchanged: str | None) -> Iterator[Manifest]:
    """The path that the endpoint wants, and its own name: providers tell their sites apart by it."""
    path = unchanged if target.path is None else target.path
    rewrite = {
        **({"hostname": target.name} if target.name else {}),
        **(_replaced(path) if path is not None else {}),
    }
    if rewrite:
        yield {"type": "URLRewrite", "urlRewrite": rewrite}


def _replaced(path: str) -> Manifest:
    return {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}}


def _headers(target: Target, *, mark: str, guarded: bool) -> Iterator[Manifest]:
    """The endpoint's own credentials, and never the client's beside them; nobody gets a key that was for us."""
    header = target.header
    added = [{"name": header.name, "value": header.value}] if header else []
    others = header.name.lower() != AUTHORIZATION.lower() if header else guarded
    changes = {
        "set": [*added, *([marked(mark)] if mark and target.unproven else [])],
        "remove": [AUTHORIZATION] if others else [],
    }
    if kept := {change: those for change, those in changes.items() if those}:
        yield {"type": "RequestHeaderModifier", "requestHeaderModifier": kept}
