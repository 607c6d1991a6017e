"""Read the state of the hub's gateway, for all controllers that create the gateway of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from kubeloop.client.resolver import Resolver
from kubeloop.conditions import condition
from kubeloop.loop import Change, Mapper
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, section
from kubeloop.reading import Cluster, find
from kubeloop.resource import of
from kubeloop.types import ResourceType
from kubeloop.wiring import everyone
from modelplane_operator.api import names
from modelplane_operator.api.inference_gateway import InferenceGateway, MutualTLSReady
from modelplane_operator.clusters.cluster.plan.mutual_tls import Hub, read_hub
from modelplane_operator.routing.endpoint.backend_url import Backend, read_url
from modelplane_operator.routing.gateway.controller import certificates
from modelplane_operator.routing.gateway.render import hosts_of, url_of

GATEWAYS = of(InferenceGateway)
HUB_GATEWAY = Key("", names.DEFAULT_GATEWAY)


def hub_gateway(hub: Cluster, now: datetime) -> Hub:
    """Return the mutual TLS state of the hub's gateway."""
    manifest = find(hub, GATEWAYS, HUB_GATEWAY)
    gateway = InferenceGateway.parse(manifest) if manifest else None
    return read_hub(gateway, certificates(gateway, hub), now)


def own_hosts(hub: Cluster, resolver: Resolver) -> frozenset[str]:
    """Return the hosts of the hub gateway's own URLs, and the known addresses of its load balancer."""
    manifest = find(hub, GATEWAYS, HUB_GATEWAY)
    return allowed_hosts(InferenceGateway.parse(manifest), resolver) if manifest else frozenset[str]()


def allowed_hosts(gateway: InferenceGateway, resolver: Resolver) -> frozenset[str]:
    """Return the same hosts and addresses for a parsed InferenceGateway.

    The names in its certificate are not resolved: they may belong to a shared network in front of it.
    """
    address = gateway.status.address if gateway.status else None
    return hosts_of(gateway) | (hosts_at(address, resolver, names.SYSTEM_NAMESPACE) if address else frozenset[str]())


def hosts_at(address: str, resolver: Resolver, asking: str) -> frozenset[str]:
    """Return the host of a gateway's address and, if that is a name, its addresses.

    `asking`: the group of lookups in which only a few run at a time.
    """
    backend = read_url(url_of(address))
    if not isinstance(backend, Backend):
        return frozenset[str]()
    return frozenset({backend.host, *(resolver.addresses(backend.host, asking) if backend.address is None else ())})


def on_gateway(kind: ResourceType) -> Mapper:
    """Return a mapper to all objects of a type, for changes of the hub gateway's certificate or address."""

    def all_of_them(change: Change, hub: Cluster) -> Iterable[Key]:
        """Return all objects of the type, if a relevant field of the hub gateway has changed."""
        old, new = (manifest and _get_relevant_fields(manifest) for manifest in change)
        return everyone(kind)(change, hub) if key_of(change.latest) == HUB_GATEWAY and old != new else ()

    return all_of_them


def on_authority(kind: ResourceType) -> Mapper:
    """Return a mapper to all objects of a type, for changes of the certificate authorities."""

    def all_of_them(change: Change, hub: Cluster) -> Iterable[Key]:
        """Return all objects of the type, if an authority's Secret has changed."""
        key = key_of(change.latest)
        is_authority = key.namespace == names.SYSTEM_NAMESPACE and key.name.startswith(names.GATEWAY_AUTHORITY)
        old, new = (manifest and (manifest.get("data"), annotations_of(manifest)) for manifest in change)
        return everyone(kind)(change, hub) if is_authority and old != new else ()

    return all_of_them


def _get_relevant_fields(gateway: Manifest) -> tuple[object, ...]:
    """Return the fields of the InferenceGateway that matter to clusters."""
    ready_condition = condition(gateway, MutualTLSReady.__name__)
    location = section(gateway, "status").get("address"), gateway["spec"].get("tls")
    return ready_condition.reason, ready_condition.message, is_terminating(gateway), *location
