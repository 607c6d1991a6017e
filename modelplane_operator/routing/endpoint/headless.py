"""Services without selectors, whose EndpointSlices the operator writes.

Slices may hold DNS names, since gateways do not support ExternalName Services.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.labels import FIELD_MANAGER
from modelplane_operator.owned import Owner, on_hub


def port(name: str, number: int, protocol: str = "") -> Manifest:
    """Return a port; `protocol`: its application protocol, if that is not its name."""
    return {"name": name, "port": number, "protocol": "TCP", "appProtocol": protocol or name}


def render_service(metadata: Manifest, ports: Sequence[Manifest]) -> Manifest:
    """Return a headless Service: gateways read its slices, and a hub has only some thousand cluster IPs."""
    spec = {
        "clusterIP": "None",
        "ports": [{"name": item["name"], "port": item["port"], "targetPort": item["port"], **item} for item in ports],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def render_slice(
    owner: Owner,
    service: str,
    address_type: str,
    port: Manifest,
    *addresses: str,
    namespace: str = "",
    suffix: str = "",
) -> Manifest:
    """Return an EndpointSlice of a Service.

    `suffix`: the suffix that tells it from the Service's other slices, if that is not the address type.
    """
    name = names.endpoint_slice(service, suffix or address_type)
    slice_labels = {labels.SERVICE_NAME: service, labels.SLICE_MANAGER: FIELD_MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": on_hub(owner, name, namespace=namespace, extra=slice_labels),
        "addressType": address_type,
        "ports": [port],
        # Traefik ignores endpoints without the ready condition.
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }
