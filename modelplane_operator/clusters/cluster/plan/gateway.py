"""How the hub's gateway reaches a cluster's: by which door, and whether it is the only one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from kubeloop.condition_types import Condition
from kubeloop.objects import Manifest
from kubeloop.plan import Step, prune
from kubeloop.words import counted
from modelplane_operator.api.gateway_status import GatewayStatus
from modelplane_operator.api.inference_cluster import GatewaySecured
from modelplane_operator.clusters.cluster.plan.mutual_tls import LEARNT, unlearnt
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, Observed
from modelplane_operator.clusters.cluster.plan.serving import ClusterServing
from modelplane_operator.routing.gateway.gateway_relay import render_relay


def gateway_status(seen: Observed, serving: ClusterServing) -> GatewayStatus | None:
    """How the cluster's gateway is reached: by what both ends can do."""
    if serving.address is None:
        return None
    last = seen.cluster.status.gateway if seen.cluster.status else None
    known = last.server_name if last else None
    ready = seen.hub.ready and seen.answers and _unlearnt(seen, serving.address) <= timedelta()
    if serving.server_name and (ready or known == serving.server_name):
        return GatewayStatus(address=serving.address, server_name=serving.server_name)
    return GatewayStatus(address=serving.address, port=serving.port) if serving.http else None


def _unlearnt(seen: Observed, address: str) -> timedelta:
    return unlearnt(render_relay(seen.cluster, address), seen.relay, seen.now)


def misleading(seen: Observed, relay: Sequence[Manifest]) -> Sequence[Step]:
    """What leads to another address than the present. A way that nobody asks for any more stays: some may be on it."""
    return tuple(prune(seen.relay, relay, owner=seen.cluster.metadata.uid or "")) if relay else ()


def gateway_secured(seen: Observed, serving: ClusterServing, gateway: GatewayStatus | None) -> Condition:
    if not serving.http and (serving.why or not seen.hub.known):
        return GatewaySecured.NOT_KNOWN.condition(seen.now, message=serving.why or seen.hub.why)
    if not seen.hub.wanted or serving.why:
        return GatewaySecured.OPEN.condition(seen.now, message=_unprotected(seen, serving))
    if gateway is None or not gateway.server_name:
        lacks = seen.hub.why or "the cluster's gateway, or the way there, is being set up for https"
        return GatewaySecured.CONFIGURING.condition(seen.now, message=lacks)
    if seen.plain:
        words = f"http still leads there from {counted(seen.plain, 'ModelEndpoint')}"
        return GatewaySecured.CONFIGURING.condition(seen.now, message=words)
    if not serving.http:
        return GatewaySecured.MUTUAL_TLS.condition(seen.now)
    known = next((one for one in seen.cluster.conditions if one.type == GatewaySecured.__name__), None)
    closed = known is not None and known.status == "True"  # it is being closed
    over = closed or _since_secured(seen) + seen.settle <= seen.now
    return (GatewaySecured.MUTUAL_TLS if over else GatewaySecured.SWITCHING).condition(seen.now)


def _unprotected(seen: Observed, serving: ClusterServing) -> str:
    """What nobody protects, and why."""
    why = serving.why if seen.hub.wanted else seen.hub.why
    if serving.address is None:
        return why
    words = f"Prompts cross to {serving.address} unencrypted, and whoever reaches that asks the models there"
    return f"{words}: {why}" if why else words


def gateway_requeue(seen: Observed, serving: ClusterServing, secured: Condition) -> float | None:
    """When there is news that no event tells of."""
    if secured.reason == GatewaySecured.SWITCHING.reason:
        return max((_since_secured(seen) + seen.settle - seen.now).total_seconds(), REQUEUE_SOON)
    if secured.status == "True" and serving.http:
        return REQUEUE_SOON  # it is closed once that was said
    if seen.hub.wanted and serving.address and (left := _unlearnt(seen, serving.address)) > timedelta():
        return max(left.total_seconds(), REQUEUE_SOON)
    return LEARNT.total_seconds() if seen.hub.wanted and not seen.answers else None


def _since_secured(seen: Observed) -> datetime:
    known = (one for one in seen.cluster.conditions if one.type == GatewaySecured.__name__ and one.status != "False")
    return next((one.last_transition_time for one in known), seen.now)
