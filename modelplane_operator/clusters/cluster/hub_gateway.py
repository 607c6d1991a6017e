"""What clusters have to know of the hub's gateway: read in one place, for all that make the gateway of a cluster."""

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
    found = find(hub, GATEWAYS, HUB_GATEWAY)
    gateway = InferenceGateway.parse(found) if found else None
    return read_hub(gateway, certificates(gateway, hub), now)


def own_hosts(hub: Cluster, resolver: Resolver) -> frozenset[str]:
    """The hosts of the hub gateway's own URLs, and the addresses that its load balancer is known to have."""
    found = find(hub, GATEWAYS, HUB_GATEWAY)
    return known_hosts(InferenceGateway.parse(found), resolver) if found else frozenset[str]()


def known_hosts(gateway: InferenceGateway, resolver: Resolver) -> frozenset[str]:
    """The same of a hub gateway that was read already.

    Not what the names of its certificate stand for: that may be a network in front, which others share.
    """
    address = gateway.status.address if gateway.status else None
    return hosts_of(gateway) | (hosts_at(address, resolver, names.SYSTEM_NAMESPACE) if address else frozenset[str]())


def hosts_at(address: str, resolver: Resolver, asking: str) -> frozenset[str]:
    """The host of a gateway's address and, if it is a name, its addresses.

    `asking`: of whose questions only some are asked at once.
    """
    read = read_url(url_of(address))
    if not isinstance(read, Backend):
        return frozenset[str]()
    return frozenset({read.host, *(resolver.addresses(read.host, asking) if read.address is None else ())})


def on_gateway(kind: ResourceType) -> Mapper:
    """Wakes all objects of a type when the hub's gateway presents its certificate, or no longer, or is elsewhere."""

    def all_of_them(change: Change, hub: Cluster) -> Iterable[Key]:
        before, after = (one and _presents(one) for one in change)
        return everyone(kind)(change, hub) if key_of(change.latest) == HUB_GATEWAY and before != after else ()

    return all_of_them


def on_authority(kind: ResourceType) -> Mapper:
    """Wakes all objects of a type when there is another authority, or one more."""

    def all_of_them(change: Change, hub: Cluster) -> Iterable[Key]:
        key = key_of(change.latest)
        ours = key.namespace == names.SYSTEM_NAMESPACE and key.name.startswith(names.GATEWAY_AUTHORITY)
        before, after = (one and (one.get("data"), annotations_of(one)) for one in change)
        return everyone(kind)(change, hub) if ours and before != after else ()

    return all_of_them


def _presents(gateway: Manifest) -> tuple[object, ...]:
    said = condition(gateway, MutualTLSReady.__name__)
    where = section(gateway, "status").get("address"), gateway["spec"].get("tls")
    return said.reason, said.message, is_terminating(gateway), *where
