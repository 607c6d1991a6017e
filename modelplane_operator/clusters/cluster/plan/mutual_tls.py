"""Switch a cluster's gateway to mutual TLS, so that only the hub's gateway can use it, without failed requests.

Steps: the gateway adds an https listener; the hub's gateway loads the relay; endpoints switch to https; once no request
can arrive by http, that listener is removed. A new gateway is never opened by http: it is not created until its
certificate can be issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from kubeloop.objects import Key, Manifest, key_of
from kubeloop.plan import Issue
from kubeloop.types import GATEWAY, SECRET, type_of
from modelplane_operator.api import names
from modelplane_operator.api.inference_gateway import InferenceGateway, MutualTLSReady
from modelplane_operator.clusters.cluster.cluster_gateway import (
    certificate,
    is_guarded,
    is_open,
    is_secured,
    programmed_listeners,
)
from modelplane_operator.owned import Owner
from modelplane_operator.routing.gateway.certificates import (
    UNLABELLED,
    Trust,
    authorities,
    describe_replaced,
    is_current,
    leaf,
    trust,
    was_just_issued,
)
from modelplane_operator.routing.gateway.render import data_plane

LEARNT: Final = timedelta(seconds=5)  # until the hub's Traefik, which polls every two seconds, has loaded a new relay


@dataclass(frozen=True, slots=True)
class Hub:
    """The state of the hub's gateway that matters to clusters."""

    trust: Trust | None = None
    """The certificate authority; None while there is none."""
    is_desired: bool = field(default=False)
    """True if clusters should answer the hub's gateway only."""
    ready: bool = field(default=False)
    """True if the hub's gateway presents its certificate."""
    reason: str = ""
    """The reason why it presents none."""
    is_decided: bool = field(default=True)
    """True if the desired mode is known. Until then cluster gateways stay as they are, open or closed."""
    began: bool = field(default=False)
    """True if mutual TLS was in use, or may be soon: new gateways wait for the decision."""


def read_hub(gateway: InferenceGateway | None, secrets: Iterable[Manifest], now: datetime) -> Hub:
    """Return the mutual TLS state of the hub, from its InferenceGateway and the Secrets of its authority."""
    authority = trust(authorities(secrets), now)
    began = authority is not None
    if gateway is None or gateway.metadata.deletion_timestamp:
        # The InferenceGateway may be created later with mutual TLS; a gateway opened until then could be used by
        # anyone.
        why = (
            f"there is no InferenceGateway named {names.DEFAULT_GATEWAY}, whose spec.mutualTLS decides this: create it"
        )
        return Hub(authority, is_decided=False, began=True, reason=why)
    reported = next((item for item in gateway.conditions if item.type == MutualTLSReady.__name__), None)
    supported = data_plane(gateway).PRESENTS_CERTIFICATE
    if reported is None:
        began = began or (supported and gateway.spec.mutual_tls != "Never")
        return Hub(
            authority,
            is_decided=False,
            began=began,
            reason="the InferenceGateway is starting (waiting for: its first status)",
        )
    ready_reason = next((item for item in MutualTLSReady if item.reason == reported.reason), MutualTLSReady.NOT_OFFERED)
    why = f"InferenceGateway {gateway.metadata.name} says {reported.reason}: {reported.message or ready_reason.meaning}"
    # A Traefik that the operator merely cannot read at the moment must not open gateways; only a spec change may.
    uncertain = ready_reason is MutualTLSReady.NOT_OFFERED and supported
    ready = ready_reason is MutualTLSReady.READY
    return Hub(authority, ready_reason.is_desired, ready, "" if ready else why, is_decided=not uncertain)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners and the certificate that the gateway of a cluster should have."""

    https: bool
    """True if the gateway should have a listener for the hub's gateway alone."""
    http: bool
    """True if the gateway should have a listener for anyone."""
    issue: Issue | None
    """The certificate to issue; None when it is current."""
    server_name: str | None
    """The name that the gateway's certificate proves; None until it does."""
    replaced: str = ""
    """The message if it is issued because another client has changed or deleted the one that the gateway uses."""
    just_issued: bool = False
    """True if the one that was changed had been issued a moment before."""

    @property
    def shut(self) -> bool:
        """True if the gateway must not be created yet, because it could only answer anyone."""
        return not self.https and not self.http

    def steps(self, *, reported: bool) -> Iterator[Issue]:
        """Yield the certificate to issue, if any.

        `reported`: True if the status has said for a while that it was replaced. Otherwise no status would ever say it.
        """
        if self.issue is not None and (not self.replaced or (reported and not self.just_issued)):
            yield self.issue


SHUT: Final = Listeners(https=False, http=False, issue=None, server_name=None)
"""Listeners of a gateway that must not be created yet."""


def choose_listeners(  # noqa: PLR0917 - what decides
    owner: Owner,
    cluster: str,
    hub: Hub,
    children: Iterable[Manifest],
    now: datetime,
    server_name: str | None,
    *,
    closed: bool,
    rewritten: bool = False,
) -> Listeners:
    """Return the desired listeners of the gateway, given the objects on the cluster.

    `server_name`: the one in the last status; it remains proven while the Gateway is changing. `closed`: True if no
    request can arrive by http any more. `rewritten`: True if another client has changed the certificate's Secret, whose
    content is not read.
    """
    existing = {(type_of(child), key_of(child)): child for child in children}
    live = existing.get((GATEWAY, Key(names.SYSTEM_NAMESPACE, names.CLUSTER_GATEWAY)))
    certificate_secret = existing.get((SECRET, Key(names.SYSTEM_NAMESPACE, names.GATEWAY_CERTIFICATE)))
    name = names.server_name(cluster)
    replaced = ""
    if live is not None and is_guarded(live) and (certificate_secret is None or rewritten):
        fault = "another client wrote its data" if certificate_secret else UNLABELLED
        replaced = describe_replaced(names.GATEWAY_CERTIFICATE, fault, cluster)
    just_issued = was_just_issued(certificate_secret, now)
    if not hub.is_decided or (hub.is_desired and hub.trust is None):
        https = certificate_secret is not None if live is None else is_guarded(live)
        proven = server_name == name or (certificate_secret is not None and live is not None and is_secured(live))
        http = not (https or hub.is_desired or hub.began) if live is None else is_open(live)
        # An existing certificate is still renewed, since the authority was known when it was issued.
        renewed = (
            leaf(certificate(owner), name, "server", hub.trust, now, cluster)
            if certificate_secret and hub.trust
            else None
        )
        expired = renewed is not None and (rewritten or not is_current(certificate_secret, renewed, now))
        return Listeners(
            https,
            http,
            issue=renewed if expired else None,
            server_name=name if https and proven else None,
            replaced=replaced if expired else "",
            just_issued=just_issued,
        )
    if hub.trust is None or not (hub.is_desired or certificate_secret is not None):
        return Listeners(https=False, http=True, issue=None, server_name=None)
    issue = leaf(certificate(owner), name, "server", hub.trust, now, cluster)
    proves = certificate_secret is not None and live is not None and (is_secured(live) or server_name == name)
    http = not hub.is_desired or (live is not None and is_open(live) and not closed)
    # After mutual TLS is turned off, http is open before requests are sent to it.
    opening = (
        not hub.is_desired
        and live is not None
        and is_open(live)
        and programmed_listeners(live) >= {listener["name"] for listener in live["spec"].get("listeners") or ()}
    )
    return Listeners(
        https=True,
        http=http,
        issue=None if is_current(certificate_secret, issue, now) and not rewritten else issue,
        server_name=name if proves and not opening else None,
        replaced=replaced,
        just_issued=just_issued,
    )


def waits(reason: str) -> str:
    """Return the message for a gateway that is not created yet (`Listeners.shut`)."""
    return f"the cluster's gateway is not created until it can refuse everybody but the hub's gateway: {reason}"


def unlearnt(desired: Iterable[Manifest], remote: Iterable[Manifest], now: datetime) -> timedelta:
    """Return how long until the hub's Traefik has loaded the relay, by the age of its objects; zero once it has.

    Traefik does not report this.
    """
    created = {(type_of(item), key_of(item)): item["metadata"]["creationTimestamp"] for item in remote}
    times = [created.get((type_of(item), key_of(item))) for item in desired]
    if None in times:
        return LEARNT
    return max((datetime.fromisoformat(item) + LEARNT - now for item in times if item), default=LEARNT)
