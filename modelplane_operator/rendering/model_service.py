"""What a ModelService is on the hub: a route over the endpoints that it selects.

Without an endpoint that can be used the route stays, and leads to a Service of ours that has none: gateways answer 503
for such a Service, which tells a client to try again. For a rule without backends they must answer 500.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modelplane_operator.api import names
from modelplane_operator.api.base import Key
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.rendering.backend_url import Backend
from modelplane_operator.rendering.inference_gateway import url_of
from modelplane_operator.rendering.model_endpoint import slice_labels
from modelplane_operator.rendering.owned import on_hub

MAX_WEIGHT = 1_000_000
MAX_BACKENDS = 16  # of one rule, by the Gateway API
FALLBACK_PORT = 80


@dataclass(frozen=True, slots=True)
class Share:
    """An endpoint with its share of the requests."""

    endpoint: ModelEndpoint
    backend: Backend
    weight: int


def selected(service: ModelService, endpoints: Iterable[ModelEndpoint]) -> tuple[tuple[ModelEndpoint, ...], ...]:
    """The endpoints of each entry, by name; one that several entries select belongs to the first."""
    left = {e.key.name: e for e in endpoints if e.key.namespace == service.key.namespace}
    groups: list[tuple[ModelEndpoint, ...]] = []
    for entry in service.spec.endpoints:
        wanted = entry.selector.match_labels.items()
        group = [name for name in sorted(left) if wanted <= left[name].metadata.labels.items()]
        groups.append(tuple(left.pop(name) for name in group))
    return tuple(groups)


def shares(
    service: ModelService, endpoints: Iterable[ModelEndpoint], backends: Mapping[Key, Backend]
) -> tuple[Share, ...]:
    """Who gets which share of the requests.

    `backends` holds the endpoints that can be used; the share of an entry without any goes to the others. A rule takes
    sixteen backends: of more, each entry keeps as many as the others, or all it has.
    """
    groups = [
        (entry.weight, [endpoint for endpoint in group if endpoint.key in backends])
        for entry, group in zip(service.spec.endpoints, selected(service, endpoints), strict=True)
    ]
    seats = _seats([len(group) for _, group in groups])
    seated = [(weight, group[:seats]) for (weight, group), seats in zip(groups, seats, strict=True) if seats]
    each = weights([(weight, len(group)) for weight, group in seated])
    return tuple(
        Share(endpoint, backends[endpoint.key], weight)
        for (_, group), weight in zip(seated, each, strict=True)
        for endpoint in group
    )


def weights(entries: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The weight of every endpoint of each entry, given the entry's weight and how many endpoints it has.

    Exact: the weights of an entry's endpoints are equal and add up in proportion to the entries' weights. Only when
    that takes numbers beyond what a route can hold are they scaled down and rounded, to 1 at least.
    """
    common = math.lcm(*(count for _, count in entries))
    exact = [weight * common // count for weight, count in entries]
    least = math.gcd(*exact)
    reduced = [weight // least for weight in exact]
    largest = max(reduced, default=0)
    if largest <= MAX_WEIGHT:
        return tuple(reduced)
    return tuple(max(1, round(weight * MAX_WEIGHT / largest)) for weight in reduced)


def _seats(counts: Sequence[int]) -> tuple[int, ...]:
    """How many endpoints of each entry a rule has room for: they take turns until it is full."""
    turns = sorted((turn, entry) for entry, count in enumerate(counts) for turn in range(count))
    seated = [entry for _, entry in turns[:MAX_BACKENDS]]
    return tuple(seated.count(entry) for entry in range(len(counts)))


def service_prefix(service: Key) -> str:
    """The path under which the hub's gateway knows a service."""
    return f"/{service.namespace}/{service.name}/"


def service_url(service: Key, gateway: str) -> str:
    """What clients append the engine's own path to, given the address of the hub's gateway."""
    return f"{url_of(gateway)}{service_prefix(service).rstrip('/')}"


def render_model_service(service: ModelService, shared: Sequence[Share]) -> tuple[Manifest, ...]:
    """The route of a service, and the Service without endpoints that it falls back to."""
    name = names.service_route(service.key.namespace, service.key.name)
    fallback = {"group": "", "kind": "Service", "name": name, "port": FALLBACK_PORT, "weight": 1}
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": on_hub(service, name),
            "spec": {
                "ports": [
                    {
                        "name": "http",
                        "port": FALLBACK_PORT,
                        "targetPort": FALLBACK_PORT,
                        "protocol": "TCP",
                        "appProtocol": "http",
                    }
                ]
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": on_hub(service, names.endpoint_slice(name, "IPv4"), extra=slice_labels(name)),
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": FALLBACK_PORT, "protocol": "TCP", "appProtocol": "http"}],
            "endpoints": [],  # without a slice Traefik takes the Service for a mistake, and answers 500
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": on_hub(service, name),
            "spec": {
                "parentRefs": [
                    {
                        "group": "gateway.networking.k8s.io",
                        "kind": "Gateway",
                        "name": names.HUB_GATEWAY,
                        "namespace": names.SYSTEM_NAMESPACE,
                    }
                ],
                "rules": [
                    {
                        "matches": [{"path": {"type": "PathPrefix", "value": service_prefix(service.key)}}],
                        "backendRefs": [_backend(share) for share in shared] or [fallback],
                        "timeouts": {"request": "0s"},  # none: answers may stream for as long as they like
                    }
                ],
            },
        },
    )


def _backend(share: Share) -> Manifest:
    namespace, name = share.endpoint.key
    rewrite = _rewrite(share)
    return {
        "group": "",
        "kind": "Service",
        "name": names.endpoint_backend(namespace, name),
        "port": share.backend.port,
        "weight": share.weight,
        **({"filters": [{"type": "URLRewrite", "urlRewrite": rewrite}]} if rewrite else {}),
    }


def _rewrite(share: Share) -> Manifest:
    """The path that the endpoint wants, and its own name: providers tell their sites apart by it."""
    path = share.endpoint.spec.rewrite_path
    return {
        **({} if share.backend.address else {"hostname": share.backend.host}),
        **({"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}} if path is not None else {}),
    }
