"""Plan the Gateway of the hub gateway, its GatewayClass, its certificates and its address.

`serve` plans the one InferenceGateway that serves models; others only get a status. The software that the Gateway
needs is planned by `software`, and only if the operator has a Helm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.certificate import Certificate
from kubeloop.condition_types import Ready, has_reason, is_true
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
    describe_replaced,
    is_current,
    is_reported,
    leaf,
    new_authority,
    spare,
    trust,
    was_just_issued,
)
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES, keep_load_balancer, service_annotations
from modelplane_operator.routing.gateway.plan.observed import Observed
from modelplane_operator.routing.gateway.render import (
    address_of,
    data_plane,
    render_inference_gateway,
    secure_listeners,
    url_of,
)
from modelplane_operator.routing.service.api_keys import FOLLOWED, PATHS, read_unsigned_until

KIND: Final = InferenceGateway.definition.kind
OWN_TRAEFIK: Final = (
    "The operator did not install this Traefik: make it present the certificate, and bind its entry point modelplane to"
    " the loopback address"
)
REPLACED_SECONDS: Final = 1.0  # between looks whether a replaced certificate may be issued again
UNSIGNED_SECONDS: Final = 60.0  # between polls for guards with unsigned paths
HUB_GATEWAY: Final = Key(names.SYSTEM_NAMESPACE, names.HUB_GATEWAY)


def serve(observed: Observed) -> Plan:
    """Return the plan that creates the Gateway, for the one InferenceGateway that serves models."""
    gateway = observed.gateway
    if gateway.metadata.deletion_timestamp:
        last_status = gateway.status or InferenceGatewayStatus()
        terminating = Ready.DELETING.condition(
            observed.now, message="The Gateway and its GatewayClass are being deleted"
        )
        return Plan(status=last_status.model_copy(update={"conditions": (terminating,)}))
    if not observed.served:
        return Plan(tuple(prune(observed.children, (), owner=gateway.metadata.uid or "")), _build_not_served(observed))
    spec = keep_load_balancer(gateway.spec, service_annotations(observed.children))
    desired = render_inference_gateway(gateway.model_copy(update={"spec": spec}))
    # The namespace belongs to the administrator: it is created if missing, and never changed or deleted.
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM_NAMESPACE}}
    create_namespace = () if observed.namespace else (Create(namespace),)
    removals = prune(observed.children, desired, owner=gateway.metadata.uid or "")
    steps = (
        *create_namespace,
        *_build_key_path_steps(observed),
        *_build_certificate_steps(observed),
        *map(Apply, desired),
        *removals,
    )
    accepts_unsigned = observed.key_paths is None or read_unsigned_until(observed.key_paths) is None
    status, delays = _build_status(observed), [UNSIGNED_SECONDS] if accepts_unsigned else []
    if has_reason(status.conditions, MutualTLSReady.REPLACED):
        delays.append(REPLACED_SECONDS)
    if observed.secrets and not authorities(observed.secrets):
        delays.append(UNSIGNED_SECONDS)
    return Plan(steps, status, min(delays, default=None))


def _build_key_path_steps(observed: Observed) -> Iterator[Step]:
    """Yield the step that creates the Secret for signing paths, or ends the time in which unsigned paths are accepted.

    The Secret has no owner: guards keep working while there is no InferenceGateway.
    """
    if observed.key_paths is None:
        metadata = {"name": PATHS.name, "namespace": PATHS.namespace}
        yield Issue(metadata, Certificate(PATHS.name, "server", observed.now - SKEW, observed.now + AUTHORITY_VALID))
    elif read_unsigned_until(observed.key_paths) is None and not observed.unsigned:
        until = {labels.UNSIGNED_UNTIL: (observed.now + FOLLOWED).isoformat(timespec="seconds")}
        metadata = observed.key_paths["metadata"]
        yield Replace(
            {
                **observed.key_paths,
                "metadata": {**metadata, "annotations": {**annotations_of(observed.key_paths), **until}},
            }
        )


def _build_certificate_steps(observed: Observed) -> Iterator[Step]:
    """Yield the steps that issue and renew the hub's certificates, and delete expired authorities.

    While mutual TLS is off, nothing is changed. If it was on and the spec has not turned it off, clusters are still
    closed, so existing certificates are renewed.
    """
    gateway, existing = observed.gateway, authorities(observed.secrets)
    # Clusters still trust an authority after its InferenceGateway was deleted to be applied again. Older versions
    # created it with an owner, and Kubernetes would delete it.
    yield from (
        Replace(_drop_owners(item))
        for item in observed.secrets
        if key_of(item).name.startswith(names.GATEWAY_AUTHORITY)
        and not is_terminating(item)
        and item["metadata"].get("ownerReferences")
    )
    reason = _decide_mutual_tls(observed)[0]
    still_needed = reason is MutualTLSReady.NOT_OFFERED and data_plane(gateway).PRESENTS_CERTIFICATE and bool(existing)
    if not (reason.is_desired or still_needed):
        return
    metadata = on_hub(gateway, names.GATEWAY_CERTIFICATE, namespace=names.SYSTEM_NAMESPACE)
    unowned = _drop_owners({"metadata": metadata})["metadata"]
    if (authority := new_authority(observed.secrets, observed.now, unowned)) is not None:
        yield authority
    if (trusted := trust(existing, observed.now)) is not None:
        desired = leaf(metadata, names.HUB_NAME, "client", trusted, observed.now)
        live = _find_secret(observed, names.GATEWAY_CERTIFICATE)
        reported = is_reported(gateway.conditions, MutualTLSReady.REPLACED, observed.now)
        again = reported and not was_just_issued(live, observed.now)
        if again if observed.fault else not is_current(live, desired, observed.now):
            yield desired
    expired = {item.secret for item in spare(existing, observed.now)}
    yield from (delete(item) for item in observed.secrets if key_of(item) in expired)


def _drop_owners(secret: Manifest) -> Manifest:
    """Return the Secret without owner references."""
    metadata = {name: value for name, value in secret["metadata"].items() if name != "ownerReferences"}
    return {**secret, "metadata": metadata}


def _find_secret(observed: Observed, name: str) -> Manifest | None:
    """Return the Secret with this name; None if there is none."""
    return next((secret for secret in observed.secrets if key_of(secret).name == name), None)


def _decide_mutual_tls(observed: Observed) -> tuple[MutualTLSReady, str]:
    """Return the reason of MutualTLSReady and its message."""
    mode, backend = observed.gateway.spec.mutual_tls, observed.gateway.spec.backend
    if mode == "Never":
        return MutualTLSReady.NOT_ASKED, ""
    if not data_plane(observed.gateway).PRESENTS_CERTIFICATE:
        message = f"{backend} cannot present the operator's certificate to clusters: use Traefik for that"
        return MutualTLSReady.NOT_OFFERED, message
    # An operator that loses its Helm does not turn off mutual TLS that was already in use.
    if mode == "Auto" and not observed.installs and not is_true(observed.gateway.conditions, MutualTLSReady):
        message = (
            "the operator did not install the Traefik of this hub: set that up for mutual TLS, then set spec.mutualTLS"
            " to Always"
        )
        return MutualTLSReady.NOT_OFFERED, message
    if observed.fault:
        return MutualTLSReady.REPLACED, describe_replaced(names.GATEWAY_CERTIFICATE, observed.fault)
    if _find_secret(observed, names.GATEWAY_CERTIFICATE) is None:
        return MutualTLSReady.PREPARING, "starting (waiting for: the certificate of the hub gateway)"
    if mode == "Auto" and not observed.installs:
        message = "Clusters stay closed, but the operator no longer runs this Traefik: set up yours to present it, or"
        return MutualTLSReady.READY, f"{message} set spec.mutualTLS to Never"
    return MutualTLSReady.READY, "" if observed.installs else OWN_TRAEFIK


def _build_not_served(observed: Observed) -> InferenceGatewayStatus:
    """Return the status of an InferenceGateway with another name, which does nothing."""
    default_name = names.DEFAULT_GATEWAY
    served = f"Models are served through the InferenceGateway named {default_name}; this one does nothing: delete it"
    not_served = ControllerReady.NOT_SERVED.condition(observed.now, message=served)
    return InferenceGatewayStatus(conditions=(not_served, not_ready(KIND, not_served)))


def _build_status(observed: Observed) -> InferenceGatewayStatus:
    """Return the status: address, URL and conditions."""
    plane, live, tls = (
        data_plane(observed.gateway),
        _find_child(observed, GATEWAY, HUB_GATEWAY),
        observed.gateway.spec.tls,
    )
    last_status = observed.gateway.status or InferenceGatewayStatus()
    # The address is kept, since the URLs of all services begin with it: a deleted Gateway may be created again.
    observed_address = address_of(live) if live else None
    address = observed_address or last_status.address
    secured, tls_problem = _decide_secured(tls, live) if tls else (TLSReady.NOT_ASKED, "")
    url = _choose_url(tls, address, last_status.url, secured=secured is TLSReady.SERVED)
    gateway_class = _find_child(observed, GATEWAY_CLASS, Key("", plane.GATEWAY_CLASS))
    controller = "".join(_find_problems(f"GatewayClass {plane.GATEWAY_CLASS}", gateway_class, "Accepted"))
    remedy = f": {GIVE_ADDRESSES}" if live and not controller else ""
    problems = [
        *([controller] if controller else []),
        *_find_problems(f"Gateway {names.SYSTEM_NAMESPACE}/{names.HUB_GATEWAY}", live, "Programmed"),
        *([] if observed_address else [f"Gateway {names.SYSTEM_NAMESPACE}/{names.HUB_GATEWAY} has no address{remedy}"]),
        *([tls_problem] if tls_problem else []),
    ]
    mutual, mutual_message = _decide_mutual_tls(observed)
    presents = mutual.condition(observed.now, message=mutual_message)
    healthy = ControllerReady.INSTALLING if controller else ControllerReady.HEALTHY
    runs = healthy.condition(observed.now, message=controller)
    listens = secured.condition(
        observed.now, message=tls_problem or ("" if tls else "Models are reached by http alone: set spec.tls")
    )
    if problems:
        ready = not_ready(KIND, listens if tls_problem and not controller else runs, "; ".join(problems))
    elif mutual is MutualTLSReady.REPLACED:
        ready = not_ready(KIND, presents)
    else:
        ready = Ready.AVAILABLE.condition(observed.now, message=f"Models are reached at {url}")
    conditions = (runs, listens, presents, ready)
    return InferenceGatewayStatus(address=address, url=url, conditions=conditions)


def _choose_url(tls: TLS | None, address: str | None, previous: str | None, *, secured: bool) -> str | None:
    """Return the beginning of models' URLs.

    Once it is https it stays so, lest clients send keys unencrypted.
    """
    if tls:
        if secured:
            return f"https://{tls.hostnames[0]}"
        if previous and previous.startswith("https:"):
            return previous
        if tls.http == "Refused":
            return None
    return url_of(address) if address else None


def _decide_secured(tls: TLS, live: Manifest | None) -> tuple[TLSReady, str]:
    """Return the reason of TLSReady, and the message of the first https listener that does not work."""
    by_name = {listener["name"]: listener for listener in entries(live or {}, "status", "listeners")}
    for name, hostname in secure_listeners(tls).items():
        reason, listener_message = _decide_listener(live, by_name.get(name, {})) if live else _UNSEEN
        if reason is TLSReady.CERTIFICATE_UNUSABLE:
            return reason, f"Secret {names.SYSTEM_NAMESPACE}/{tls.secret_ref.name} cannot be used: {listener_message}"
        if reason is TLSReady.CONFIGURING:
            return reason, f"The gateway does not listen to https for {hostname}: {listener_message}"
    return TLSReady.SERVED, ""


_UNSEEN: Final = (TLSReady.CONFIGURING, "starting (waiting for: the gateway's controller)")


def _decide_listener(live: Manifest, listener: Section) -> tuple[TLSReady, str]:
    """Return the reason of TLSReady for one listener, with its controller's message."""
    for aspect, reason in (
        ("ResolvedRefs", TLSReady.CERTIFICATE_UNUSABLE),
        ("Accepted", TLSReady.CONFIGURING),
        ("Programmed", TLSReady.CONFIGURING),
    ):
        reported = condition(live, aspect, listener)
        if reported.current and not reported.is_true:
            return reason, reported.why
    return (TLSReady.SERVED, "") if condition(live, "Programmed", listener).current else _UNSEEN


def _find_child(observed: Observed, kind: ResourceType, key: Key) -> Manifest | None:
    """Return the child of this type and key; None if there is none."""
    return next((child for child in observed.children if (type_of(child), key_of(child)) == (kind, key)), None)


def _find_problems(name: str, live: Manifest | None, aspect: str) -> Iterator[str]:
    """Yield why a child does not have a condition yet, by what its controller reports for its current generation."""
    if live is None:
        yield f"starting (waiting for: {name})"
        return
    reported = condition(live, aspect)
    if not reported.current:
        yield f"{name} is not {aspect}: starting (waiting for: the gateway's controller)"
    elif not reported.is_true:
        yield f"{name} is not {aspect}: {reported.why}"
