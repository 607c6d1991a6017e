"""Traefik as the hub gateway (`data_plane.py`).

TLS: a BackendTLSPolicy is the Gateway API's own word for "this is its name: send it, and verify it with the system's
authorities". The port also says `appProtocol: https`, which suffices for an address: a policy needs a name.

Traefik completes names as every pod of the cluster does. So those of endpoints have a dot at the end: no search domain
turns `redis.prod` into a Service of the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kubeloop.helm.release import Component, Release
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.types import HTTP_ROUTE, SERVICE, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewaySpec, Software
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.models.replica.render.routing import replica_prefix
from modelplane_operator.owned import on_hub, owner_labels
from modelplane_operator.routing.endpoint.backend_url import DEFAULT_PORTS, Backend, address_of
from modelplane_operator.routing.endpoint.credentials import Header
from modelplane_operator.routing.endpoint.headless import port, render_service, render_slice
from modelplane_operator.routing.endpoint.render import asked_name, of_cluster
from modelplane_operator.routing.gateway.data_plane import Allowed
from modelplane_operator.routing.gateway.gateway_pods import LEAVE, READ, life_cycle, traefik_values
from modelplane_operator.routing.service import one_pass
from modelplane_operator.routing.service.api_keys import ANSWER, KEY_HEADERS
from modelplane_operator.routing.service.weights import BackendGroup

GATEWAY_CLASS = "traefik"
CONTROLLER = "traefik.io/gateway-controller"
# It listens on 8000 and 8443 inside, and wants its listeners to say so.
PORT = 8000
TLS_PORT = 8443
LOAD_BALANCER = Key("traefik-system", "traefik")  # its chart makes it
BALANCER_PORT = 80
ENDPOINT = SERVICE
PRESENTS_CERTIFICATE = True
CLASS: Manifest = {}

CHART: Final = "traefik"
REPOSITORY: Final = "https://traefik.github.io/charts"
# Where Traefik calls itself, to present the hub's certificate (gateway_relay.py).
RELAY: Final = "modelplane"
RELAY_HOST: Final = f"relay.{names.INTERNAL_DOMAIN}"
RELAY_PORT: Final = 8444


H2C: Final = "kubernetes.io/h2c"  # HTTP/2 without TLS


# A backend that takes no connection is passed over soon; and no connection is reused that the other end, which often
# gives up after a minute, may be closing just then (docs/hub-gateway.md has the times of all hops).
TO_BACKENDS: Final = {"dialTimeout": "3s", "idleConnTimeout": "50s"}

rules = one_pass.rules


def software(spec: InferenceGatewaySpec) -> Software | None:
    return spec.traefik


def chart(gateway: InferenceGateway, software: Software, allowed: Allowed) -> Component:
    served = (names.SYSTEM_NAMESPACE, LOAD_BALANCER.namespace, *allowed.tenants) if allowed.tenants else ()
    pods = traefik_values(gateway.spec, LOAD_BALANCER.name)
    values = {
        "providers": {
            "kubernetesGateway": {
                "enabled": True,
                "statusAddress": {"service": {"name": LOAD_BALANCER.name, "namespace": LOAD_BALANCER.namespace}},
                **({"namespaces": list(served)} if served else {}),
            },
            # What leads to clusters (gateway_relay.py), and what asks for API keys. Only what the operator made:
            # IngressRoutes of anybody else would answer at any path.
            "kubernetesCRD": {
                "enabled": True,
                "labelSelector": labels.OWNER_UID,
                **({"namespaces": list(served)} if served else {}),
            },
            "kubernetesIngress": {"enabled": False},
        },
        # What its namespace demands (render_namespaces), whatever the chart's version says by itself.
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
            f"--entryPoints.{RELAY}.forwardedHeaders.insecure=true",  # nobody but itself comes by there
            f"--entryPoints.{RELAY}.transport.respondingTimeouts.readTimeout={READ}",
            *(f"--serversTransport.forwardingTimeouts.{key}={value}" for key, value in TO_BACKENDS.items()),
            # It ends after those by which requests come.
            *(
                f"--entryPoints.{RELAY}.transport.lifeCycle.{key}={value}"
                for key, value in life_cycle(leave=LEAVE + 5).items()
            ),
        ],
        "experimental": {"fastProxy": {"enabled": True}},
        # By itself the chart makes Traefik what serves every Ingress of the hub that names no class.
        "ingressClass": {"enabled": False},
        # The Gateway and its class are ours to make.
        "gateway": {"enabled": False},
        "gatewayClass": {"enabled": False},
    }
    release, ours = Key(LOAD_BALANCER.namespace, f"mp-{CHART}"), owner_labels(gateway)
    return Component(CHART, Release(release, CHART, REPOSITORY, software.version, values, ours, software.digest))


def render_before(_: InferenceGateway) -> Sequence[Manifest]:
    return ()


def render_after(_: InferenceGateway) -> Sequence[Manifest]:
    return ()


def render_endpoint(endpoint: ModelEndpoint, backend: Backend, header: Header | None = None) -> Sequence[Manifest]:
    """A Service that stands for its backend."""
    name = names.endpoint_backend(*endpoint.key)
    if of_cluster(endpoint):
        return tuple(_by_relay(endpoint, backend, name))
    # Of a cluster's gateway we know that it speaks HTTP/2, as the relay does by TLS (docs/decisions/0024).
    known = backend.scheme == "http" and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)
    ports = port(backend.scheme, backend.port, H2C if known else "")
    return (
        render_service(_noted(endpoint, backend, name), [ports]),
        render_slice(endpoint, name, backend.address_type, ports, backend.dialled),
        *_tls_policy(endpoint, backend, name),
    )


def _by_relay(endpoint: ModelEndpoint, backend: Backend, name: str) -> Iterator[Manifest]:
    """A Service with two ports: by the one the gateway presents the hub's certificate, the other is as it was before.

    So a route that has not followed yet leads where it did.
    """
    plain = replace(backend, scheme="http", port=DEFAULT_PORTS["http"])
    ports = [port(backend.scheme, backend.port, "http"), port(plain.scheme, plain.port, H2C)]
    yield render_service(_noted(endpoint, backend, name), ports)
    # By HTTP/1.1: a request to any cluster would share one connection, and a body that nobody reads would hold up all.
    relay = port(backend.scheme, RELAY_PORT, "http")
    yield render_slice(endpoint, name, "FQDN", relay, f"{RELAY_HOST}.", named=RELAY)
    yield render_slice(endpoint, name, plain.address_type, ports[1], plain.dialled)


def _noted(endpoint: ModelEndpoint, backend: Backend, name: str) -> Manifest:
    return {**on_hub(endpoint, name), "annotations": {labels.BACKEND: str(backend)}}


def _tls_policy(endpoint: ModelEndpoint, backend: Backend, name: str) -> Sequence[Manifest]:
    name_to_prove = asked_name(endpoint.spec.hostname, backend)
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
    return ""


def comes_back(groups: Sequence[BackendGroup]) -> bool:
    return len(groups) > 1


def render_loopback(service: ModelService) -> Sequence[Manifest]:
    name, way = names.service_relay(*service.key), port("http", BALANCER_PORT)
    host = f"{LOAD_BALANCER.name}.{LOAD_BALANCER.namespace}.svc"
    return render_service(on_hub(service, name), [way]), render_slice(service, name, "FQDN", way, host)


def render_guard(service: ModelService, path: str, routes: Sequence[str], keys: tuple[str, int]) -> Sequence[Manifest]:
    """A ForwardAuth."""
    host, number = keys
    asked = {
        "address": f"http://{_in_url(host)}:{number}{path}",
        "authRequestHeaders": [*KEY_HEADERS],
        "trustForwardHeader": False,
        "maxResponseBodySize": ANSWER,
    }
    return [
        {
            "apiVersion": "traefik.io/v1alpha1",
            "kind": "Middleware",
            "metadata": on_hub(service, names.service_guard(*service.key)),
            "spec": {"forwardAuth": asked},
        }
    ]


def _in_url(host: str) -> str:
    """The key service's host as Traefik is told it. A name is whole, else four with search domains are asked for first;
    an address with a dot behind it is looked up as a name, and there is none.
    """
    address = address_of(host)
    if address is None:
        return f"{host.rstrip('.')}."
    return f"[{address}]" if address.version == 6 else str(address)


def guards_in(objects: Iterable[Manifest]) -> frozenset[str]:
    """Return the names of the Middlewares by which the routes among these objects ask."""
    rules = [rule for one in objects if type_of(one) == HTTP_ROUTE for rule in entries(one, "spec", "rules")]
    filters = (each for rule in rules for each in entries(rule, "filters"))
    return frozenset(str(section(each, "extensionRef").get("name")) for each in filters)


def guarded(service: Key, rules: Sequence[Manifest]) -> list[Manifest]:
    reference = {"group": "traefik.io", "kind": "Middleware", "name": names.service_guard(*service)}
    first = {"type": "ExtensionRef", "extensionRef": reference}
    return [{**rule, "filters": [first, *rule.get("filters", ())]} for rule in rules]
