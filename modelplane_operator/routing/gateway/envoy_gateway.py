"""Envoy Gateway as the data plane of the hub (`data_plane.py`).

Envoy Gateway 1.9 does not derive https from a port, and ignores all changes of a Gateway because of a name with a
trailing dot. So an endpoint is a `Backend`, a kind of its own, and search domains are turned off in the bootstrap of
the Envoys.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest
from kubeloop.ownership import owner_labels
from kubeloop.types import BACKEND
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewaySpec, Software
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.clusters.cluster import cluster_gateway
from modelplane_operator.clusters.cluster.cluster_gateway import ENVOY_CHART, ENVOY_NAMESPACE, ENVOY_REPOSITORY
from modelplane_operator.models.replica.render.kubelets import LOST
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.endpoint.backend_url import Backend, address_of
from modelplane_operator.routing.endpoint.credentials import Header
from modelplane_operator.routing.endpoint.render import requested_name
from modelplane_operator.routing.gateway.data_plane import Allowed
from modelplane_operator.routing.gateway.envoy_policies import backend_policy, client_policy
from modelplane_operator.routing.gateway.gateway_pods import envoy_proxy
from modelplane_operator.routing.service import two_passes
from modelplane_operator.routing.service.api_keys import KEY_HEADERS
from modelplane_operator.routing.service.weights import BackendGroup

_VERSION = "gateway.envoyproxy.io/v1alpha1"

GATEWAY_CLASS = "envoy"
CONTROLLER = cluster_gateway.CONTROLLER
PORT = 80
TLS_PORT = 443
LOAD_BALANCER = Key(ENVOY_NAMESPACE, names.HUB_GATEWAY)
BALANCER_PORT = 80
METRICS = (19001, "/stats/prometheus?usedonly&filter=upstream_rq_[0-9]")
ENDPOINT = BACKEND
PRESENTS_CERTIFICATE = False
CLASS: Manifest = {
    "parametersRef": {
        "group": "gateway.envoyproxy.io",
        "kind": "EnvoyProxy",
        "name": names.HUB_GATEWAY,
        "namespace": names.SYSTEM_NAMESPACE,
    }
}

# Search domains must not turn an endpoint's name, `redis.prod`, into a Service of the hub.
_BOOTSTRAP = """\
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
    dns_resolver_options: {no_default_search_domain: true}
"""


rules = two_passes.rules


def software(spec: InferenceGatewaySpec) -> Software | None:
    """Return the settings of Envoy Gateway."""
    return spec.envoy_gateway


def chart(gateway: InferenceGateway, software: Software, _: Allowed) -> Component:
    """Return the chart of Envoy Gateway."""
    values = {
        "deployment": {"pod": {"tolerations": LOST}},
        # Endpoints are Backends.
        "config": {"envoyGateway": {"extensionApis": {"enableBackend": True}}},
        # Not used here; it adds a webhook for the binding of every pod, to tell Envoys their zone.
        "topologyInjector": {"enabled": False},
        # Its admission policy would block other versions of the Gateway API's kinds on the whole hub.
        "crds": {"gatewayAPI": {"safeUpgradePolicy": {"enabled": False}}},
    }
    release, own_labels = Key(ENVOY_NAMESPACE, f"mp-{ENVOY_CHART}"), owner_labels(gateway)
    desired = Release(release, ENVOY_CHART, ENVOY_REPOSITORY, software.version, values, own_labels, software.digest)
    return Component("envoy-gateway", desired)


def render_before(gateway: InferenceGateway) -> Sequence[Manifest]:
    """Return the EnvoyProxy, which says how the Envoys run."""
    return [
        {
            "apiVersion": _VERSION,
            "kind": "EnvoyProxy",
            "metadata": on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE),
            "spec": {
                **envoy_proxy(gateway.spec, names.HUB_GATEWAY, names.HUB_GATEWAY),
                "bootstrap": {"type": "Merge", "value": _BOOTSTRAP},
            },
        }
    ]


def render_after(gateway: InferenceGateway) -> Sequence[Manifest]:
    """Return the policies for connections of clients and to backends."""
    metadata = on_hub(gateway, names.HUB_GATEWAY, namespace=names.SYSTEM_NAMESPACE)
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": names.HUB_GATEWAY}
    # Clusters' gateways close idle connections after 120 s; the hub's must close them earlier, with a margin.
    return client_policy(metadata, target), backend_policy(metadata, target, idle="60s")


def render_endpoint(endpoint: ModelEndpoint, backend: Backend, header: Header | None = None) -> Sequence[Manifest]:
    """Return the Backend of an endpoint, and a filter that injects credentials from a suitable Secret."""
    trust = {"wellKnownCACertificates": "System", "sni": requested_name(endpoint.spec.hostname, backend)}
    metadata = on_hub(endpoint, names.endpoint_backend(*endpoint.key))
    annotated = {**metadata, "annotations": {labels.BACKEND: str(backend)}}
    backend_object = _build_backend(
        annotated, backend.host, backend.port, **({"tls": trust} if backend.scheme == "https" else {})
    )
    if header is None or header.secret is None:
        return [backend_object]
    injection = {"header": header.name, "overwrite": True, "credential": {"valueRef": {"name": header.secret}}}
    spec = {"credentialInjection": injection}
    return backend_object, {"apiVersion": _VERSION, "kind": "HTTPRouteFilter", "metadata": metadata, "spec": spec}


def _build_backend(metadata: Manifest, host: str, port: int, **more: Manifest) -> Manifest:
    """Return a Backend with one host and port."""
    is_name = address_of(host) is None
    endpoint = {"fqdn": {"hostname": host, "port": port}} if is_name else {"ip": {"address": host, "port": port}}
    return {"apiVersion": _VERSION, "kind": "Backend", "metadata": metadata, "spec": {"endpoints": [endpoint], **more}}


def unprovable(name: str | None, backend: Backend) -> str:
    """Return why the backend cannot be verified: Envoy Gateway cannot verify an IP address."""
    if backend.scheme == "http" or name:
        return ""
    return "Envoy Gateway cannot verify an address: set hostname to the name in its certificate"


def comes_back(groups: Sequence[BackendGroup]) -> bool:
    """True if the service has several endpoints, since paths are rewritten in a second pass."""
    return len(groups) > 1 or len(groups[0].members) > 1


def render_loopback(service: ModelService) -> Sequence[Manifest]:
    """Return the Backend that leads to the gateway's own Service."""
    # The name is fully qualified, since search domains are off (_BOOTSTRAP); the domain is the chart's default.
    host = f"{LOAD_BALANCER.name}.{LOAD_BALANCER.namespace}.svc.cluster.local"
    return [_build_backend(on_hub(service, names.service_relay(*service.key)), host, BALANCER_PORT)]


def render_guard(service: ModelService, path: str, routes: Sequence[str], keys: tuple[str, int]) -> Sequence[Manifest]:
    """Return a SecurityPolicy with an ExtAuth. It references the routes, not the other way round."""
    backend, (host, port) = names.service_keys(*service.key), keys
    reference = {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": backend, "port": port}
    return (
        _build_backend(on_hub(service, backend), host, port),
        {
            "apiVersion": _VERSION,
            "kind": "SecurityPolicy",
            "metadata": on_hub(service, names.service_route(*service.key)),
            "spec": {
                "targetRefs": [
                    {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route} for route in routes
                ],
                "extAuth": {
                    "failOpen": False,
                    "statusOnError": 503,
                    "timeout": "5s",
                    "headersToExtAuth": [*KEY_HEADERS],
                    "http": {"backendRefs": [reference], "pathOverride": path},
                },
            },
        },
    )


def add_guards(_: Key, rules: Sequence[Manifest]) -> list[Manifest]:
    """Return the rules unchanged: the SecurityPolicy references their routes."""
    return [*rules]
