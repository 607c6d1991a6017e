"""What clusters have to know of the hub's gateway: read in one place, for all that make the gateway of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from modelplane_operator.api import names
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway, MutualTLSReady
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.resources import ResourceType, annotations_of, key_of, of, section
from modelplane_operator.controllers.inference_gateway import certificates
from modelplane_operator.controllers.loop import Change, Waker
from modelplane_operator.controllers.reading import Cluster, find
from modelplane_operator.controllers.wiring import everyone
from modelplane_operator.planning.mutual_tls import Hub, read_hub
from modelplane_operator.planning.symptoms import condition

GATEWAYS = of(InferenceGateway)
HUB_GATEWAY = Key("", names.DEFAULT_GATEWAY)


def hub_gateway(hub: Cluster, now: datetime) -> Hub:
    found = find(hub, GATEWAYS, HUB_GATEWAY)
    gateway = InferenceGateway.parse(found) if found else None
    return read_hub(gateway, certificates(gateway, hub) if gateway else (), now)


def on_gateway(kind: ResourceType) -> Waker:
    """Wakes all objects of a type when the hub's gateway presents its certificate, or no longer, or is elsewhere."""

    def all_of_them(change: Change, hub: Cluster) -> Iterable[Key]:
        before, after = (one and _presents(one) for one in change)
        return everyone(kind)(change, hub) if key_of(change.latest) == HUB_GATEWAY and before != after else ()

    return all_of_them


def on_authority(kind: ResourceType) -> Waker:
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
    return said.get("reason"), said.get("message"), gateway["metadata"].get("deletionTimestamp"), *where
