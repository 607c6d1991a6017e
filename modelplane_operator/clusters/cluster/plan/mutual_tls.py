"""How the gateway of a cluster comes to answer nobody but the hub's, and how a running one gets there unnoticed.

First it listens by https too, then the hub's gateway learns the way, then endpoints lead there, and only when no
request can come by http any more is that closed. A gateway that has never been open is never opened: until its
certificate can be made, it waits.
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
from modelplane_operator.clusters.cluster.cluster_gateway import certificate, is_guarded, is_open, secured, working
from modelplane_operator.owned import Owner
from modelplane_operator.routing.gateway.certificates import Trust, authorities, is_current, leaf, trust
from modelplane_operator.routing.gateway.render import data_plane

LEARNT: Final = timedelta(seconds=5)  # until the hub's Traefik has learnt of a way: it looks every two


@dataclass(frozen=True, slots=True)
class Hub:
    """What a cluster has to know of the hub's gateway."""

    trust: Trust | None = None
    """None while there is no authority."""
    wanted: bool = field(default=False)
    """Whether clusters are to answer the hub's gateway alone."""
    ready: bool = field(default=False)
    """Whether the hub's gateway presents its certificate."""
    why: str = ""
    """Why it does not."""
    known: bool = field(default=True)
    """Whether it is told what is wanted. Until it is, gateways of clusters stay as they are, open or closed."""
    began: bool = field(default=False)
    """Whether clusters did answer the hub's gateway alone, or may be about to: new gateways wait for that."""


def read_hub(gateway: InferenceGateway | None, secrets: Iterable[Manifest], now: datetime) -> Hub:
    found = trust(authorities(secrets), now)
    began = found is not None
    if gateway is None or gateway.metadata.deletion_timestamp:
        # It may come, and ask for mutual TLS: what answers anybody until then is found by anybody.
        why = f"there is no InferenceGateway named {names.DEFAULT_GATEWAY}, whose spec.mutualTLS says whom it answers"
        return Hub(found, known=False, began=True, why=why)
    said = next((one for one in gateway.conditions if one.type == MutualTLSReady.__name__), None)
    offered = data_plane(gateway).PRESENTS_CERTIFICATE
    if said is None:
        began = began or (offered and gateway.spec.mutual_tls != "Never")
        return Hub(found, known=False, began=began, why="the InferenceGateway has not been looked at yet")
    reason = next((one for one in MutualTLSReady if one.reason == said.reason), MutualTLSReady.NOT_OFFERED)
    why = f"InferenceGateway {gateway.metadata.name} says {said.reason}: {said.message or reason.meaning}"
    # A Traefik of which the operator has only lost sight opens nothing; to say so takes another spec.
    doubted = reason is MutualTLSReady.NOT_OFFERED and offered
    ready = reason is MutualTLSReady.READY
    return Hub(found, reason.wanted, ready, "" if ready else why, known=not doubted)


@dataclass(frozen=True, slots=True)
class Doors:
    """What the gateway of a cluster is to listen to."""

    https: bool
    http: bool
    issue: Issue | None
    """Its certificate, when that is to be made."""
    server_name: str | None
    """What it proves to be; None until it does."""

    @property
    def shut(self) -> bool:
        """Whether there is to be no gateway yet: it could only answer anybody."""
        return not self.https and not self.http

    def issued(self) -> Iterator[Issue]:
        if self.issue is not None:
            yield self.issue


SHUT: Final = Doors(https=False, http=False, issue=None, server_name=None)


def doors(  # noqa: PLR0917 - what decides
    owner: Owner,
    cluster: str,
    hub: Hub,
    children: Iterable[Manifest],
    now: datetime,
    known: str | None,
    *,
    closed: bool,
) -> Doors:
    """What to listen to, given what was seen on the cluster. `closed`: whether no request can come by http any more.

    `known`: what it proved to be when it was last looked at. It does so on while its Gateway changes.
    """
    there = {(type_of(child), key_of(child)): child for child in children}
    live = there.get((GATEWAY, Key(names.SYSTEM_NAMESPACE, names.CLUSTER_GATEWAY)))
    held = there.get((SECRET, Key(names.SYSTEM_NAMESPACE, names.GATEWAY_CERTIFICATE)))
    name = names.server_name(cluster)
    if not hub.known or (hub.wanted and hub.trust is None):
        https = held is not None if live is None else is_guarded(live)
        named = known == name or (held is not None and live is not None and secured(live))
        http = not (https or hub.wanted or hub.began) if live is None else is_open(live)
        # A certificate that is there is renewed all the same: whom to trust was known when it was made.
        again = leaf(certificate(owner), name, "server", hub.trust, now, cluster) if held and hub.trust else None
        due = again is not None and not is_current(held, again, now)
        return Doors(https, http, issue=again if due else None, server_name=name if https and named else None)
    if hub.trust is None or not (hub.wanted or held is not None):
        return Doors(https=False, http=True, issue=None, server_name=None)
    issue = leaf(certificate(owner), name, "server", hub.trust, now, cluster)
    proves = held is not None and live is not None and (secured(live) or known == name)
    http = not hub.wanted or (live is not None and is_open(live) and not closed)
    # Where it is no longer wanted, the way by http is open before requests take it.
    leaves = not hub.wanted and live is not None and is_open(live) and _answers(live)
    return Doors(
        https=True,
        http=http,
        issue=None if is_current(held, issue, now) else issue,
        server_name=name if proves and not leaves else None,
    )


def waits(why: str) -> str:
    """What is said of a gateway that is not made yet (`Doors.shut`)."""
    return f"the cluster's gateway is to answer the hub's gateway alone, and waits until it can: {why}"


def unlearnt(wanted: Iterable[Manifest], there: Iterable[Manifest], now: datetime) -> timedelta:
    """How long until the hub's Traefik knows a way; nothing once it does. Nothing tells that it has."""
    made = {(type_of(one), key_of(one)): one["metadata"]["creationTimestamp"] for one in there}
    times = [made.get((type_of(one), key_of(one))) for one in wanted]
    if None in times:
        return LEARNT
    return max((datetime.fromisoformat(one) + LEARNT - now for one in times if one), default=LEARNT)


def _answers(gateway: Manifest) -> bool:
    """Whether all that the Gateway is to listen to works."""
    return working(gateway) >= {one["name"] for one in gateway["spec"].get("listeners") or ()}
