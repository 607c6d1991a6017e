"""Services that select no pods: EndpointSlices of ours say where they lead.

Names stand there too, as gateways take no ExternalName Services.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.labels import FIELD_MANAGER
from modelplane_operator.owned import Owner, on_hub


def port(name: str, number: int, protocol: str = "") -> Manifest:
    """`protocol`: what is spoken there, where the port's name does not say so."""
    return {"name": name, "port": number, "protocol": "TCP", "appProtocol": protocol or name}


def render_service(metadata: Manifest, ports: Sequence[Manifest]) -> Manifest:
    """A Service that nobody dials: gateways read its slices, and a hub's addresses for Services are some thousands."""
    spec = {
        "clusterIP": "None",
        "ports": [{"name": one["name"], "port": one["port"], "targetPort": one["port"], **one} for one in ports],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def render_slice(
    owner: Owner,
    service: str,
    address_type: str,
    port: Manifest,
    *addresses: str,
    namespace: str = "",
    named: str = "",
) -> Manifest:
    """Where a Service leads. `named`: what tells it from another slice of the Service, when that is not its type."""
    name = names.endpoint_slice(service, named or address_type)
    ties = {labels.SERVICE_NAME: service, labels.SLICE_MANAGER: FIELD_MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": on_hub(owner, name, namespace=namespace, extra=ties),
        "addressType": address_type,
        "ports": [port],
        # Traefik passes over an endpoint that does not say that it is ready.
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }
