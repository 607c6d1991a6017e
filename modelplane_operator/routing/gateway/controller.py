"""The controller of InferenceGateway: observes its Gateway and, with Helm, its software, and maps changes to it.

Secrets with certificates are found by name as well as by owner: clusters trust the authorities of a deleted
InferenceGateway for a while, and a new one of the same name continues with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from kubeloop.client.certificates import find_fault, is_authority
from kubeloop.client.kube import Kube
from kubeloop.condition_types import is_true
from kubeloop.helm import steps as releases
from kubeloop.helm.driver import Helm
from kubeloop.loop import Change, Clients, Controller
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, labels_of
from kubeloop.reading import Cluster, find, list_applied, list_children
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
from modelplane_operator.api.inference_gateway import InferenceGateway, MutualTLSReady
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.api.names import PLATFORM_NAMESPACES
from modelplane_operator.clusters.stack.read_charts import list_outdated_definitions, read_charts
from modelplane_operator.routing.gateway.certificates import UNLABELLED, authorities, leaf, trust
from modelplane_operator.routing.gateway.data_plane import EVERYTHING, Allowed
from modelplane_operator.routing.gateway.plan import Observed, plan
from modelplane_operator.routing.gateway.render import data_plane
from modelplane_operator.routing.gateway.render.software import NAMESPACES, gateway_parts, render_namespaces
from modelplane_operator.routing.service.api_keys import PATHS, has_unsigned, signing_key

CHILDREN = (GATEWAY_CLASS, GATEWAY, ENVOY_PROXY, *POLICIES)
HOME = Key("", names.SYSTEM_NAMESPACE)
"""Namespace of the Gateway."""

_map_to_owner = owner_of_kind(InferenceGateway.definition.kind)


def controller(
    definitions: tuple[Manifest, ...], helm: Helm | None, *, allowed: Allowed = EVERYTHING
) -> Controller[InferenceGateway, Observed]:
    """Return the controller.

    `definitions`: the CustomResourceDefinitions of the Gateway API. Without `helm`, another owner installs the
    software.
    """

    async def observe(gateway: InferenceGateway, clients: Clients) -> Observed:
        """Return an InferenceGateway with its objects and, if Helm may be used, its software."""
        hub, uid = clients.hub, gateway.metadata.uid or ""
        # the objects by which gateways check API keys for ModelServices
        guards = (
            manifest
            for kind in (MIDDLEWARE, SECURITY_POLICY)
            for manifest in hub.find(kind) or ()
            if labels_of(manifest).get(labels.OWNER_KIND) == ModelService.definition.kind
        )
        observed = Observed(
            gateway,
            tuple(list_applied(hub, CHILDREN, uid, PLATFORM_NAMESPACES)),
            namespace=find(hub, NAMESPACE, HOME) is not None,
            now=clients.now(),
            secrets=(secrets := tuple(certificates(gateway, hub))),
            fault=_find_certificate_fault(gateway, secrets, clients.now()),
            key_paths=(key_paths := find(hub, SECRET, PATHS)),
            unsigned=has_unsigned(guards, signing_key(key_paths)),
        )
        return await _observe_software(observed, helm, clients, definitions, allowed) if helm else observed

    return Controller(
        InferenceGateway,
        observe,
        plan,
        watches={**dict.fromkeys(CHILDREN, _map_from_child), NAMESPACE: _map_from_namespace, SECRET: _map_from_secret},
        executors=releases.by(helm),
    )


def _map_from_secret(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the owner of a Secret; the default InferenceGateway for the Secret that signs paths."""
    is_signing_key = key_of(change.latest) == PATHS
    return (Key("", names.DEFAULT_GATEWAY),) if is_signing_key else _map_to_owner(change, hub)


def certificates(gateway: InferenceGateway | None, hub: Cluster) -> Iterable[Manifest]:
    """Return the Secrets with the hub's certificates and their authorities.

    Authorities of any InferenceGateway of that name count, as clusters still trust those of a deleted one.
    """
    owned = list_children(hub, (SECRET,), gateway.metadata.uid or "", PLATFORM_NAMESPACES) if gateway else ()
    by_key = {key_of(secret): secret for secret in owned}
    secrets = hub.find(SECRET)
    for key in secrets.keys() if secrets else ():
        if key.namespace != names.SYSTEM_NAMESPACE or not key.name.startswith(names.GATEWAY_AUTHORITY):
            continue
        secret = find(hub, SECRET, key) or {}
        if labels_of(secret).get(labels.OWNER_KIND) == InferenceGateway.definition.kind:
            # One that cannot sign counts as malformed, so that another one is created.
            by_key[key] = secret if is_authority(secret) else {**secret, "data": {}}
    return by_key.values()


def _find_certificate_fault(gateway: InferenceGateway, secrets: Iterable[Manifest], now: datetime) -> str:
    """Return why the hub gateway's Secret does not hold the certificate that the operator issued; empty if it does."""
    by_name = {key_of(secret).name: secret for secret in secrets}
    secret, trusted = by_name.get(names.GATEWAY_CERTIFICATE), trust(authorities(by_name.values()), now)
    if trusted is None:
        return ""
    if secret is None:
        return UNLABELLED if is_true(gateway.conditions, MutualTLSReady) else ""
    desired = leaf({}, names.HUB_NAME, "client", trusted, now)
    issued_for = annotations_of(secret).get(labels.CERTIFICATE)
    if issued_for and issued_for != desired.metadata["annotations"][labels.CERTIFICATE]:
        return ""  # it is of other authorities, and issued again for these
    return find_fault(secret, desired.certificate, by_name[trusted.signer.name], now)


def _map_from_child(change: Change, hub: Cluster) -> Iterable[Key]:
    """Return the owner, unless only the number of a Gateway's routes has changed."""
    same = change.old and change.new and _get_relevant_fields(change.old) == _get_relevant_fields(change.new)
    return () if same else _map_to_owner(change, hub)


def _get_relevant_fields(child: Manifest) -> tuple[Any, ...]:
    """Return the fields of a child that the plan uses."""
    metadata, status = child["metadata"], child.get("status", {})
    metadata_fields = (metadata.get("generation"), metadata.get("labels"), metadata.get("annotations"))
    listeners = [(listener["name"], listener.get("conditions")) for listener in status.get("listeners") or ()]
    return (
        *metadata_fields,
        metadata.get("deletionTimestamp"),
        status.get("conditions"),
        status.get("addresses"),
        listeners,
    )


def _map_from_namespace(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the InferenceGateway if the namespace of its Gateway was created or deleted."""
    created_or_deleted = change.old is None or change.new is None
    return (Key("", names.DEFAULT_GATEWAY),) if created_or_deleted and key_of(change.latest) == HOME else ()


# Software ---------------------------------------------------------------------------------------------------------


async def _observe_software(
    observed: Observed, helm: Helm, clients: Clients, definitions: tuple[Manifest, ...], allowed: Allowed
) -> Observed:
    """Return the observed state, completed with Helm releases, namespaces and the load balancer."""
    hub, gateway, components = clients.hub, observed.gateway, gateway_parts(observed.gateway, allowed)
    terminating = gateway.metadata.deletion_timestamp is not None
    # The operator may read Helm's records in these namespaces only.
    existing_namespaces = tuple(name for name in NAMESPACES if find(hub, NAMESPACE, Key("", name)))
    return replace(
        observed,
        charts=await read_charts(
            hub, gateway.metadata.uid or "", components, helm, clients, homes=NAMESPACES, namespaces=existing_namespaces
        ),
        taken=_find_foreign_namespaces(gateway, hub),
        definitions=() if terminating else await list_outdated_definitions(hub, clients, definitions),
        balancer=await _find_balancer(observed, clients) if terminating else "",
        allowed=allowed,
    )


async def _find_balancer(observed: Observed, clients: Clients) -> str:
    """Return the load balancer while it is being deleted, which its provider must finish; else empty."""
    balancer = data_plane(observed.gateway).LOAD_BALANCER

    async def find_terminating(kube: Kube) -> str:
        """Return the load balancer's Service if it is being deleted."""
        service = await kube.find(SERVICE, balancer)
        return str(balancer) if service and is_terminating(service) else ""

    remaining = frozenset((child["kind"], child["metadata"]["name"]) for child in observed.children)
    return await clients.reads.of(clients.hub, ("load balancer", balancer, remaining), find_terminating, clients.now())


def _find_foreign_namespaces(gateway: InferenceGateway, hub: Cluster) -> frozenset[str]:
    """Return the required namespaces that belong to another owner."""
    namespace_names = (namespace["metadata"]["name"] for namespace in render_namespaces(gateway))
    existing = {name: manifest for name in namespace_names if (manifest := find(hub, NAMESPACE, Key("", name)))}
    return frozenset(name for name, manifest in existing.items() if labels.owner_uid(manifest) != gateway.metadata.uid)
