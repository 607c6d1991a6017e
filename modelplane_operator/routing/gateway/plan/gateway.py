"""The Gateway of the hub gateway and its class, its certificates, and under which address it is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.certificate import Certificate
from kubeloop.condition_types import Ready, is_true
from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, Section, annotations_of, entries, is_terminating, key_of
from kubeloop.plan import Apply, Create, Issue, Plan, Replace, Step, delete, prune
from kubeloop.types import GATEWAY, GATEWAY_CLASS, ResourceType, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import (
    TLS,
    ControllerReady,
    InferenceGateway,
    InferenceGatewayStatus,
    MutualTLSReady,
    TLSReady,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.gateway.certificates import (
    AUTHORITY_VALID,
    SKEW,
    authorities,
    is_current,
    leaf,
    new_authority,
    spare,
    trust,
)
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES, keeping_balancer, service_annotations
from modelplane_operator.routing.gateway.plan.observed import Observed
from modelplane_operator.routing.gateway.render import (
    address_of,
    data_plane,
    render_inference_gateway,
    secure_listeners,
    url_of,
)
from modelplane_operator.routing.service.api_keys import FOLLOWED, PATHS, unsigned_until

KIND: Final = InferenceGateway.definition.kind
OWN_TRAEFIK: Final = (
    "This Traefik is not the operator's: see to it that it presents the certificate, and that its entry point "
    "modelplane is on the loopback address alone"
)
UNSIGNED_SECONDS: Final = 60.0  # until it is looked again whether guards with paths of before are left
HUB_GATEWAY: Final = Key(names.SYSTEM_NAMESPACE, names.HUB_GATEWAY)


def serve(seen: Observed) -> Plan:
    """Have one Gateway, for the InferenceGateway that models are served through."""
    gateway = seen.gateway
    if gateway.metadata.deletion_timestamp:
        known = gateway.status or InferenceGatewayStatus()
        terminating = Ready.DELETING.condition(seen.now, message="The Gateway and its GatewayClass are being deleted")
        return Plan(status=known.model_copy(update={"conditions": (terminating,)}))
    if not seen.served:
        return Plan(tuple(prune(seen.children, (), owner=gateway.metadata.uid or "")), _not_served(seen))
    spec = keeping_balancer(gateway.spec, service_annotations(seen.children))
    wanted = render_inference_gateway(gateway.model_copy(update={"spec": spec}))
    # The namespace is the administrator's: it is made where it lacks, and is never ours to change or delete.
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM_NAMESPACE}}
    made = () if seen.namespace else (Create(home),)
    gone = prune(seen.children, wanted, owner=gateway.metadata.uid or "")
    steps = (*made, *_key_paths(seen), *_certificates(seen), *map(Apply, wanted), *gone)
    open_for_now = seen.key_paths is None or unsigned_until(seen.key_paths) is None
    return Plan(steps, _status(seen), UNSIGNED_SECONDS if open_for_now else None)


def _key_paths(seen: Observed) -> Iterator[Step]:
    """What signs where the key service is asked; and that paths of before are over, once no guard has one.

    It is no InferenceGateway's: guards stay as they are while there is none.
    """
    if seen.key_paths is None:
        metadata = {"name": PATHS.name, "namespace": PATHS.namespace}
        yield Issue(metadata, Certificate(PATHS.name, "server", seen.now - SKEW, seen.now + AUTHORITY_VALID))
    elif unsigned_until(seen.key_paths) is None and not seen.unsigned:
        until = {labels.UNSIGNED_UNTIL: (seen.now + FOLLOWED).isoformat(timespec="seconds")}
        metadata = seen.key_paths["metadata"]
        yield Replace(
            {**seen.key_paths, "metadata": {**metadata, "annotations": {**annotations_of(seen.key_paths), **until}}}
        )


def _certificates(seen: Observed) -> Iterator[Step]:
    """What both sides know each other by, made anew in time. While nobody asks for it, nothing of it is touched.

    Where it was on and nobody has said that it is to end, clusters are closed still: what is there is renewed.
    """
    gateway, known = seen.gateway, authorities(seen.secrets)
    # Clusters trust an authority longer than an InferenceGateway lives that is deleted to be applied again.
    yield from (Replace(_unowned(one)) for one in seen.secrets if _goes_with_its_owner(one))
    reason = _mutual_tls(seen)[0]
    lost = reason is MutualTLSReady.NOT_OFFERED and data_plane(gateway).PRESENTS_CERTIFICATE and bool(known)
    if not (reason.wanted or lost):
        return
    metadata = on_hub(gateway, names.GATEWAY_CERTIFICATE, namespace=names.SYSTEM_NAMESPACE)
    unowned = _unowned({"metadata": metadata})["metadata"]
    if (authority := new_authority(seen.secrets, seen.now, unowned)) is not None:
        yield authority
    if (trusted := trust(known, seen.now)) is not None:
        wanted = leaf(metadata, names.HUB_NAME, "client", trusted, seen.now)
        if not is_current(_secret(seen, names.GATEWAY_CERTIFICATE), wanted, seen.now):
            yield wanted
    over = {one.secret for one in spare(known, seen.now)}
    yield from (delete(one) for one in seen.secrets if key_of(one) in over)


def _goes_with_its_owner(secret: Manifest) -> bool:
    """Whether it is an authority that Kubernetes deletes with its InferenceGateway, as those of before were made."""
    authority = key_of(secret).name.startswith(names.GATEWAY_AUTHORITY)
    return authority and not is_terminating(secret) and bool(secret["metadata"].get("ownerReferences"))


def _unowned(secret: Manifest) -> Manifest:
    metadata = {name: value for name, value in secret["metadata"].items() if name != "ownerReferences"}
    return {**secret, "metadata": metadata}


def _secret(seen: Observed, name: str) -> Manifest | None:
    return next((one for one in seen.secrets if key_of(one).name == name), None)


def _mutual_tls(seen: Observed) -> tuple[MutualTLSReady, str]:
    """Whether the hub gateway can prove to clusters what it is, and why not."""
    asked, backend = seen.gateway.spec.mutual_tls, seen.gateway.spec.backend
    if asked == "Never":
        return MutualTLSReady.NOT_ASKED, ""
    if not data_plane(seen.gateway).PRESENTS_CERTIFICATE:
        words = f"{backend} presents no certificate of the operator's to clusters; Traefik does"
        return MutualTLSReady.NOT_OFFERED, words
    if asked == "Auto" and not seen.installs and not _began(seen):
        words = "the Traefik here is not the operator's: set it up for that, and set spec.mutualTLS to Always"
        return MutualTLSReady.NOT_OFFERED, words
    if _secret(seen, names.GATEWAY_CERTIFICATE) is None:
        return MutualTLSReady.PREPARING, "the certificate of the hub gateway is being made"
    if asked == "Auto" and not seen.installs:
        words = "Clusters stay closed, but the operator no longer runs this Traefik: set up yours to present it, or"
        return MutualTLSReady.READY, f"{words} set spec.mutualTLS to Never"
    return MutualTLSReady.READY, "" if seen.installs else OWN_TRAEFIK


def _began(seen: Observed) -> bool:
    """Whether it did present one: an operator that loses its Helm does not take that back."""
    return is_true(seen.gateway.conditions, MutualTLSReady)


def _not_served(seen: Observed) -> InferenceGatewayStatus:
    other = names.DEFAULT_GATEWAY
    served = f"Models are served through the InferenceGateway named {other}; this one does nothing: delete it"
    told = ControllerReady.NOT_SERVED.condition(seen.now, message=served)
    return InferenceGatewayStatus(conditions=(told, not_ready(KIND, told)))


def _status(seen: Observed) -> InferenceGatewayStatus:
    plane, live, tls = data_plane(seen.gateway), _child(seen, GATEWAY, HUB_GATEWAY), seen.gateway.spec.tls
    known = seen.gateway.status or InferenceGatewayStatus()
    # Every service's URL begins with the address: it outlives a Gateway that somebody deletes and we make again.
    found = address_of(live) if live else None
    address = found or known.address
    secured, lack = _secured(tls, live) if tls else (TLSReady.NOT_ASKED, "")
    url = _url(tls, address, known.url, secured=secured is TLSReady.SERVED)
    gateway_class = _child(seen, GATEWAY_CLASS, Key("", plane.GATEWAY_CLASS))
    controller = "".join(_lacks(f"GatewayClass {plane.GATEWAY_CLASS}", gateway_class, "Accepted"))
    remedy = f": {GIVE_ADDRESSES}" if live and not controller else ""
    lacking = [
        *([controller] if controller else []),
        *_lacks(f"Gateway {names.SYSTEM_NAMESPACE}/{names.HUB_GATEWAY}", live, "Programmed"),
        *([] if found else [f"Gateway {names.SYSTEM_NAMESPACE}/{names.HUB_GATEWAY} has no address{remedy}"]),
        *([lack] if lack else []),
    ]
    mutual, why = _mutual_tls(seen)
    healthy = ControllerReady.INSTALLING if controller else ControllerReady.HEALTHY
    runs = healthy.condition(seen.now, message=controller)
    listens = secured.condition(
        seen.now, message=lack or ("" if tls else "Models are reached by http alone: set spec.tls")
    )
    if lacking:
        ready = not_ready(KIND, listens if lack and not controller else runs, "; ".join(lacking))
    else:
        ready = Ready.AVAILABLE.condition(seen.now, message=f"Models are reached at {url}")
    conditions = (runs, listens, mutual.condition(seen.now, message=why), ready)
    return InferenceGatewayStatus(address=address, url=url, conditions=conditions)


def _url(tls: TLS | None, address: str | None, known: str | None, *, secured: bool) -> str | None:
    """What models' URLs begin with. Once that is https it stays: no key shall begin to travel in the open."""
    if tls:
        if secured:
            return f"https://{tls.hostnames[0]}"
        if known and known.startswith("https:"):
            return known
        if tls.http == "Refused":
            return None
    return url_of(address) if address else None


def _secured(tls: TLS, live: Manifest | None) -> tuple[TLSReady, str]:
    """Whether all listeners by https do their work, and what the first that does not says."""
    told = {one["name"]: one for one in entries(live or {}, "status", "listeners")}
    for name, hostname in secure_listeners(tls).items():
        reason, why = _listens(live, told.get(name, {})) if live else _UNSEEN
        if reason is TLSReady.CERTIFICATE_UNUSABLE:
            return reason, f"Secret {names.SYSTEM_NAMESPACE}/{tls.secret_ref.name} cannot be used: {why}"
        if reason is TLSReady.CONFIGURING:
            return reason, f"The gateway does not listen to https for {hostname}: {why}"
    return TLSReady.SERVED, ""


_UNSEEN: Final = (TLSReady.CONFIGURING, "no gateway controller has looked at it")


def _listens(live: Manifest, listener: Section) -> tuple[TLSReady, str]:
    for aspect, reason in (
        ("ResolvedRefs", TLSReady.CERTIFICATE_UNUSABLE),
        ("Accepted", TLSReady.CONFIGURING),
        ("Programmed", TLSReady.CONFIGURING),
    ):
        found = condition(live, aspect, listener)
        if found.current and not found.is_true:
            return reason, found.why
    return (TLSReady.SERVED, "") if condition(live, "Programmed", listener).current else _UNSEEN


def _child(seen: Observed, kind: ResourceType, key: Key) -> Manifest | None:
    return next((child for child in seen.children if (type_of(child), key_of(child)) == (kind, key)), None)


def _lacks(name: str, live: Manifest | None, aspect: str) -> Iterator[str]:
    """What keeps a child from having come so far, as its controller says it of the child's present content."""
    if live is None:
        yield f"{name} is not there yet"
        return
    found = condition(live, aspect)
    if not found.current:
        yield f"{name} is not {aspect} yet: no gateway controller has looked at it"
    elif not found.is_true:
        yield f"{name} is not {aspect}: {found.why}"
