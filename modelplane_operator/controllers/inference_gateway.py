"""InferenceGateway, its routing half: what to read and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.kube.objects import Key, Manifest, key_of, labels_of
from modelplane_operator.kube.resources import ENVOY_PROXY, GATEWAY, GATEWAY_CLASS, NAMESPACE, POLICIES, SECRET
from modelplane_operator.planning.inference_gateway import Observed, plan
from modelplane_operator.runtime.loop import Change, Clients, Controller
from modelplane_operator.runtime.reading import OUR_OWN, Cluster, applied, children, find
from modelplane_operator.runtime.wiring import owner_of_kind

CHILDREN = (GATEWAY_CLASS, GATEWAY, ENVOY_PROXY, *POLICIES)
HOME = Key("", names.SYSTEM_NAMESPACE)

_owner = owner_of_kind(InferenceGateway.definition.kind)


async def observe(gateway: InferenceGateway, clients: Clients) -> Observed:
    return Observed(
        gateway,
        tuple(applied(clients.hub, CHILDREN, gateway.metadata.uid or "", OUR_OWN)),
        namespace=find(clients.hub, NAMESPACE, HOME) is not None,
        now=clients.now(),
        secrets=tuple(certificates(gateway, clients.hub)),
    )


def certificates(gateway: InferenceGateway | None, hub: Cluster) -> Iterable[Manifest]:
    """The Secrets with the certificates of the hub, and the authorities that sign them.

    Authorities are any InferenceGateway's of that name: clusters trust what one before has made.
    """
    mine = children(hub, (SECRET,), gateway.metadata.uid or "", OUR_OWN) if gateway else ()
    found = {key_of(one): one for one in mine}
    secrets = hub.find(SECRET)
    for key in secrets.keys() if secrets else ():
        if key.namespace != names.SYSTEM_NAMESPACE or not key.name.startswith(names.GATEWAY_AUTHORITY):
            continue
        one = find(hub, SECRET, key) or {}
        if labels_of(one).get(labels.OWNER_KIND) == InferenceGateway.definition.kind:
            found[key] = one
    return found.values()


def _changed(change: Change, hub: Cluster) -> Iterable[Key]:
    """The owner, unless no more has changed than the number of routes that a Gateway has."""
    same = change.old and change.new and _of_interest(change.old) == _of_interest(change.new)
    return () if same else _owner(change, hub)


def _of_interest(child: Manifest) -> tuple[Any, ...]:
    metadata, status = child["metadata"], child.get("status", {})
    written = (metadata.get("generation"), metadata.get("labels"), metadata.get("annotations"))
    listeners = [(one["name"], one.get("conditions")) for one in status.get("listeners") or ()]
    return *written, metadata.get("deletionTimestamp"), status.get("conditions"), status.get("addresses"), listeners


def _home(change: Change, _: Cluster) -> Iterable[Key]:
    """The InferenceGateway whose Gateway is in a namespace that comes or goes."""
    came_or_went = change.old is None or change.new is None
    return (Key("", names.DEFAULT_GATEWAY),) if came_or_went and key_of(change.latest) == HOME else ()


CONTROLLER = Controller(
    InferenceGateway,
    observe,
    plan,
    watches={**dict.fromkeys(CHILDREN, _changed), NAMESPACE: _home, SECRET: _owner},
)
