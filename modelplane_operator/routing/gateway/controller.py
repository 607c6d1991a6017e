"""InferenceGateway: what to read of its Gateway and, with Helm, of its software; and who wakes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from kubeloop.client.kube import Kube
from kubeloop.helm import steps as releases
from kubeloop.helm.driver import Helm
from kubeloop.loop import Change, Clients, Controller
from kubeloop.objects import Key, Manifest, is_terminating, key_of, labels_of
from kubeloop.reading import Cluster, applied, children, find
from kubeloop.types import (
    ENVOY_PROXY,
    GATEWAY,
    GATEWAY_CLASS,
    MIDDLEWARE,
    NAMESPACE,
    POLICIES,
    SECRET,
    SECURITY_POLICY,
    SERVICE,
)
from kubeloop.wiring import owner_of_kind
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clusters.stack.read_charts import look, ours
from modelplane_operator.routing.gateway.data_plane import EVERYTHING, Allowed
from modelplane_operator.routing.gateway.plan import Observed, plan
from modelplane_operator.routing.gateway.render import data_plane
from modelplane_operator.routing.gateway.render.software import NAMESPACES, gateway_parts, render_namespaces
from modelplane_operator.routing.service.api_keys import PATHS, has_unsigned, signing_of

CHILDREN = (GATEWAY_CLASS, GATEWAY, ENVOY_PROXY, *POLICIES)
HOME = Key("", names.SYSTEM_NAMESPACE)

_owner = owner_of_kind(InferenceGateway.definition.kind)


def controller(
    definitions: tuple[Manifest, ...], helm: Helm | None, *, allowed: Allowed = EVERYTHING
) -> Controller[InferenceGateway, Observed]:
    """`definitions` are those of the Gateway API's kinds; without `helm`, somebody else installs the software."""

    async def observe(gateway: InferenceGateway, clients: Clients) -> Observed:
        hub, uid = clients.hub, gateway.metadata.uid or ""
        seen = Observed(
            gateway,
            tuple(applied(hub, CHILDREN, uid, PLATFORM_NAMESPACES)),
            namespace=find(hub, NAMESPACE, HOME) is not None,
            now=clients.now(),
            secrets=tuple(certificates(gateway, hub)),
            key_paths=(key_paths := find(hub, SECRET, PATHS)),
            unsigned=has_unsigned(_guards(hub), signing_of(key_paths)),
        )
        return await _with_software(seen, helm, clients, definitions, allowed) if helm else seen

    return Controller(
        InferenceGateway,
        observe,
        plan,
        watches={**dict.fromkeys(CHILDREN, _changed), NAMESPACE: _home, SECRET: _secret},
        executors=releases.by(helm),
    )


def _guards(hub: Cluster) -> Iterable[Manifest]:
    """What has gateways ask for keys, for ModelServices."""
    every = chain.from_iterable(hub.find(kind) or () for kind in (MIDDLEWARE, SECURITY_POLICY))
    return (one for one in every if labels_of(one).get(labels.OWNER_KIND) == ModelService.definition.kind)


def _secret(change: Change, hub: Cluster) -> Iterable[Key]:
    signs = key_of(change.latest) == PATHS
    return (Key("", names.DEFAULT_GATEWAY),) if signs else _owner(change, hub)


def certificates(gateway: InferenceGateway | None, hub: Cluster) -> Iterable[Manifest]:
    """The Secrets with the certificates of the hub, and the authorities that sign them.

    Authorities are any InferenceGateway's of that name: clusters trust what one before has made.
    """
    mine = children(hub, (SECRET,), gateway.metadata.uid or "", PLATFORM_NAMESPACES) if gateway else ()
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


# Its software ---------------------------------------------------------------------------------------------------------


async def _with_software(
    seen: Observed, helm: Helm, clients: Clients, definitions: tuple[Manifest, ...], allowed: Allowed
) -> Observed:
    hub, gateway, parts = clients.hub, seen.gateway, gateway_parts(seen.gateway, allowed)
    terminating = gateway.metadata.deletion_timestamp is not None
    # The account may read Helm's records there, and nowhere else.
    there = tuple(name for name in NAMESPACES if find(hub, NAMESPACE, Key("", name)))
    return replace(
        seen,
        charts=await look(hub, gateway.metadata.uid or "", parts, helm, clients, homes=NAMESPACES, namespaces=there),
        taken=_taken(gateway, hub),
        definitions=() if terminating else await ours(hub, clients, definitions),
        balancer=await _balancer(seen, clients) if terminating else "",
        allowed=allowed,
    )


async def _balancer(seen: Observed, clients: Clients) -> str:
    """The load balancer, if it is being taken away: whoever gave it the address has to take that back."""
    balancer = data_plane(seen.gateway).LOAD_BALANCER

    async def ask(kube: Kube) -> str:
        service = await kube.find(SERVICE, balancer)
        return str(balancer) if service and is_terminating(service) else ""

    left = frozenset((child["kind"], child["metadata"]["name"]) for child in seen.children)
    return await clients.reads.of(clients.hub, ("load balancer", balancer, left), ask, clients.now())


def _taken(gateway: InferenceGateway, hub: Cluster) -> frozenset[str]:
    named = (one["metadata"]["name"] for one in render_namespaces(gateway))
    there = {name: found for name in named if (found := find(hub, NAMESPACE, Key("", name)))}
    return frozenset(name for name, found in there.items() if labels.owner_uid(found) != gateway.metadata.uid)
