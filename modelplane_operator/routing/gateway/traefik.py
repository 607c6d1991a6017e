"""Traefik as the data plane of the hub (`data_plane.py`).

TLS: a BackendTLSPolicy makes the gateway send the backend's name and verify it with the system's authorities. The port
also has `appProtocol: https`, which is enough for an IP address, as a policy needs a name.

Traefik resolves names with the pod's search domains. So endpoints' names have a trailing dot: no search domain turns
`redis.prod` into a Service of the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.ownership import owner_labels
from kubeloop.types import HTTP_ROUTE, SERVICE, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewaySpec, Software
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.models.replica.render.routing import replica_prefix
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.endpoint.backend_url import DEFAULT_PORTS, Backend, address_of
from modelplane_operator.routing.endpoint.credentials import Header
from modelplane_operator.routing.endpoint.headless import port, render_service, render_slice
from modelplane_operator.routing.endpoint.render import of_cluster, requested_name
from modelplane_operator.routing.gateway.data_plane import Allowed
from modelplane_operator.routing.gateway.gateway_pods import LEAVE, READ, life_cycle, traefik_values
from modelplane_operator.routing.service import one_pass
from modelplane_operator.routing.service.api_keys import ANSWER, KEY_HEADERS
from modelplane_operator.routing.service.weights import BackendGroup

GATEWAY_CLASS = "traefik"
CONTROLLER = "traefik.io/gateway-controller"
# Traefik's ports inside the pod, which its listeners must have.
PORT = 8000
TLS_PORT = 8443
LOAD_BALANCER = Key("traefik-system", "traefik")  # created by its chart
METRICS = (9100, "/metrics")
BALANCER_PORT = 80
ENDPOINT = SERVICE
PRESENTS_CERTIFICATE = True
CLASS: Manifest = {}

CHART: Final = "traefik"
REPOSITORY: Final = "https://traefik.github.io/charts"
# The address at which Traefik calls itself, to present the hub's certificate (gateway_relay.py).
RELAY: Final = "modelplane"
RELAY_HOST: Final = f"relay.{names.INTERNAL_DOMAIN}"
RELAY_PORT: Final = 8444


H2C: Final = "kubernetes.io/h2c"  # HTTP/2 without TLS


# Unreachable backends are skipped soon, and connections are not reused when the other end, which often closes them
# after a minute, may be closing them (docs/hub-gateway.md has the timeouts of all hops).
TO_BACKENDS: Final = {"dialTimeout": "3s", "idleConnTimeout": "50s"}

rules = one_pass.rules


def software(spec: InferenceGatewaySpec) -> Software | None:
    """Return the settings of Traefik."""
    return spec.traefik


def chart(gateway: InferenceGateway, software: Software, allowed: Allowed) -> Component:
    """Return the chart of Traefik."""
    served_namespaces = (names.SYSTEM_NAMESPACE, LOAD_BALANCER.namespace, *allowed.tenants) if allowed.tenants else ()
    pods = traefik_values(gateway.spec, LOAD_BALANCER.name)
    values = {
        "providers": {
            "kubernetesGateway": {
                "enabled": True,
                "statusAddress": {"service": {"name": LOAD_BALANCER.name, "namespace": LOAD_BALANCER.namespace}},
                **({"namespaces": list(served_namespaces)} if served_namespaces else {}),
            },
            # For relays to clusters (gateway_relay.py) and guards with API keys. Only the operator's own objects:
            # foreign IngressRoutes could claim any path.
            "kubernetesCRD": {
                "enabled": True,
                "labelSelector": labels.OWNER_UID,
                **({"namespaces": list(served_namespaces)} if served_namespaces else {}),
            },
            "kubernetesIngress": {"enabled": False},
        },
        # Required by the Pod Security level of its namespace, whatever the chart's defaults are.
        "podSecurityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **(
            {"rbac": {"enabled": False}, "serviceAccount": {"name": allowed.traefik_account}}
            if allowed.traefik_account
            else {}
        ),
        **pods,
        "deployment": {**pods["deployment"], "hostAliases": [{"ip": "127.0.0.1", "hostnames": [RELAY_HOST]}]},
        "additionalArguments": [
            f"--entryPoints.{RELAY}.address=127.0.0.1:{RELAY_PORT}/tcp",
            f"--entryPoints.{RELAY}.forwardedHeaders.insecure=true",  # only Traefik itself connects there
            f"--entryPoints.{RELAY}.transport.respondingTimeouts.readTimeout={READ}",
            *(f"--serversTransport.forwardingTimeouts.{key}={value}" for key, value in TO_BACKENDS.items()),
            # What it counts by route (service/counters.py); its chart has the entry point by default.
            f"--entryPoints.metrics.address=:{METRICS[0]}/tcp",
            "--metrics.prometheus=true",
            "--metrics.prometheus.entryPoint=metrics",
            "--metrics.prometheus.addRoutersLabels=true",
            # This entry point ends after those for clients.
            *(
                f"--entryPoints.{RELAY}.transport.lifeCycle.{key}={value}"
                for key, value in life_cycle(leave=LEAVE + 5).items()
            ),
        ],
        "experimental": {"fastProxy": {"enabled": True}},
        # By default the chart makes Traefik serve every Ingress of the hub without a class.
        "ingressClass": {"enabled": False},
        # The operator creates the Gateway and its class.
        "gateway": {"enabled": False},
        "gatewayClass": {"enabled": False},
    }
    release, own_labels = Key(LOAD_BALANCER.namespace, f"mp-{CHART}"), owner_labels(gateway)
    return Component(CHART, Release(release, CHART, REPOSITORY, software.version, values, own_labels, software.digest))


def render_before(_: InferenceGateway) -> Sequence[Manifest]:
    """Return nothing: the GatewayClass needs no other object."""
    return ()


def render_after(_: InferenceGateway) -> Sequence[Manifest]:
    """Return nothing: no object needs the Gateway."""
    return ()


def render_endpoint(endpoint: ModelEndpoint, backend: Backend, header: Header | None = None) -> Sequence[Manifest]:
    """Return the Service of an endpoint with its EndpointSlice, and a TLS policy for https."""
    name = names.endpoint_backend(*endpoint.key)
    if of_cluster(endpoint):
        return tuple(_render_relayed(endpoint, backend, name))
    # Clusters' gateways are known to speak HTTP/2, as the relay does over TLS (docs/internals/decisions/0024).
    is_replica = backend.scheme == "http" and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)
    ports = port(backend.scheme, backend.port, H2C if is_replica else "")
    return (
        render_service(_build_metadata(endpoint, backend, name), [ports]),
        render_slice(endpoint, name, backend.address_type, ports, backend.dialled),
        *_render_tls_policy(endpoint, backend, name),
    )


def _render_relayed(endpoint: ModelEndpoint, backend: Backend, name: str) -> Iterator[Manifest]:
    """Yield a Service with two ports: one leads to the relay with the hub's certificate, one to the old backend.

    So routes that still use the old port lead where they did.
    """
    plain_backend = replace(backend, scheme="http", port=DEFAULT_PORTS["http"])
    ports = [port(backend.scheme, backend.port, "http"), port(plain_backend.scheme, plain_backend.port, H2C)]
    yield render_service(_build_metadata(endpoint, backend, name), ports)
    # HTTP/1.1, since with HTTP/2 requests to all clusters would share one connection, which an unread body would block.
    relay = port(backend.scheme, RELAY_PORT, "http")
    yield render_slice(endpoint, name, "FQDN", relay, f"{RELAY_HOST}.", suffix=RELAY)
    yield render_slice(endpoint, name, plain_backend.address_type, ports[1], plain_backend.dialled)


def _build_metadata(endpoint: ModelEndpoint, backend: Backend, name: str) -> Manifest:
    """Return the metadata of an endpoint's Service, with its backend as an annotation."""
    return {**on_hub(endpoint, name), "annotations": {labels.BACKEND: str(backend)}}


def _render_tls_policy(endpoint: ModelEndpoint, backend: Backend, name: str) -> Sequence[Manifest]:
    """Return the policy that verifies the backend's name; none for http or an IP address."""
    name_to_prove = requested_name(endpoint.spec.hostname, backend)
    if backend.scheme == "http" or name_to_prove is None:
        return ()
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "BackendTLSPolicy",
            "metadata": on_hub(endpoint, name),
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": name}],
                "validation": {"hostname": name_to_prove, "wellKnownCACertificates": "System"},
            },
        }
    ]


def unprovable(name: str | None, backend: Backend) -> str:
    """Return nothing: Traefik verifies IP addresses too."""
    return ""


def comes_back(groups: Sequence[BackendGroup]) -> bool:
    """True if the endpoints need more than one rule."""
    return len(groups) > 1


def render_loopback(service: ModelService) -> Sequence[Manifest]:
    """Return the Service and EndpointSlice that lead to the gateway's own Service."""
    name, http_port = names.service_relay(*service.key), port("http", BALANCER_PORT)
    host = f"{LOAD_BALANCER.name}.{LOAD_BALANCER.namespace}.svc"
    return render_service(on_hub(service, name), [http_port]), render_slice(service, name, "FQDN", http_port, host)


def render_guard(service: ModelService, path: str, routes: Sequence[str], keys: tuple[str, int]) -> Sequence[Manifest]:
    """Return a Middleware with a ForwardAuth."""
    host, number = keys
    forward_auth = {
        "address": f"http://{_format_host(host)}:{number}{path}",
        "authRequestHeaders": [*KEY_HEADERS],
        "trustForwardHeader": False,
        "maxResponseBodySize": ANSWER,
    }
    return [
        {
            "apiVersion": "traefik.io/v1alpha1",
            "kind": "Middleware",
            "metadata": on_hub(service, names.service_guard(*service.key)),
            "spec": {"forwardAuth": forward_auth},
        }
    ]


def _format_host(host: str) -> str:
    """Return the key service's host for a URL.

    A name gets a trailing dot, which avoids four queries with search domains. An IP address must not have one, as it
    would be looked up as a name.
    """
    address = address_of(host)
    if address is None:
        return f"{host.rstrip('.')}."
    return f"[{address}]" if address.version == 6 else str(address)


def guards_in(objects: Iterable[Manifest]) -> frozenset[str]:
    """Return the names of the Middlewares that the routes among these objects use."""
    rules = [
        rule for manifest in objects if type_of(manifest) == HTTP_ROUTE for rule in entries(manifest, "spec", "rules")
    ]
    filters = (filter_item for rule in rules for filter_item in entries(rule, "filters"))
    return frozenset(str(section(filter_item, "extensionRef").get("name")) for filter_item in filters)


def add_guards(service: Key, rules: Sequence[Manifest]) -> list[Manifest]:
    """Return the rules with the guard as their first filter."""
    reference = {"group": "traefik.io", "kind": "Middleware", "name": names.service_guard(*service)}
    first = {"type": "ExtensionRef", "extensionRef": reference}
    return [{**rule, "filters": [first, *rule.get("filters", ())]} for rule in rules]
