"""Plan how the hub's gateway reaches a cluster's gateway, by http or mutual TLS, and how secured that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from kubeloop.condition_types import Condition
from kubeloop.objects import Manifest
from kubeloop.plan import Step, prune
from kubeloop.words import count_of
from modelplane_operator.api.gateway_status import GatewayStatus
from modelplane_operator.api.inference_cluster import GatewaySecured
from modelplane_operator.clusters.cluster.plan.mutual_tls import LEARNT, unlearnt
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, Observed
from modelplane_operator.clusters.cluster.plan.serving import ClusterServing
from modelplane_operator.routing.gateway.gateway_relay import render_relay


def gateway_status(observed: Observed, serving: ClusterServing) -> GatewayStatus | None:
    """Return the address of the cluster's gateway for the status; None while it has none.

    The server name of mutual TLS is set once both gateways support it, and kept while the cluster's still does.
    """
    if serving.address is None:
        return None
    last_gateway = observed.cluster.status.gateway if observed.cluster.status else None
    previous_name = last_gateway.server_name if last_gateway else None
    ready = observed.hub.ready and observed.answers and _compute_relay_delay(observed, serving.address) <= timedelta()
    if serving.server_name and (ready or previous_name == serving.server_name):
        return GatewayStatus(address=serving.address, server_name=serving.server_name)
    return GatewayStatus(address=serving.address, port=serving.port) if serving.http else None


def _compute_relay_delay(observed: Observed, address: str) -> timedelta:
    """Return how long until the hub's Traefik has loaded the relay to the address."""
    return unlearnt(render_relay(observed.cluster, address), observed.relay, observed.now)


def prune_relay(observed: Observed, relay: Sequence[Manifest]) -> Sequence[Step]:
    """Return the steps that delete relay objects leading to an old address.

    Nothing is deleted while no relay is rendered, since requests may still be using it.
    """
    return tuple(prune(observed.relay, relay, owner=observed.cluster.metadata.uid or "")) if relay else ()


def gateway_secured(observed: Observed, serving: ClusterServing, gateway: GatewayStatus | None) -> Condition:
    """Return the GatewaySecured condition: open, being configured, switching, or mutual TLS."""
    if not serving.http and (serving.reason or not observed.hub.is_decided):
        return GatewaySecured.NOT_KNOWN.condition(observed.now, message=serving.reason or observed.hub.reason)
    if not observed.hub.is_desired or serving.reason:
        return GatewaySecured.OPEN.condition(observed.now, message=_describe_unprotected(observed, serving))
    if gateway is None or not gateway.server_name:
        missing = observed.hub.reason or "starting (waiting for: https at the cluster's gateway)"
        return GatewaySecured.CONFIGURING.condition(observed.now, message=missing)
    if observed.plain:
        message = f"starting (waiting for: {count_of(observed.plain, 'ModelEndpoint')} to change from http to https)"
        return GatewaySecured.CONFIGURING.condition(observed.now, message=message)
    if not serving.http:
        return GatewaySecured.MUTUAL_TLS.condition(observed.now)
    previous = next((item for item in observed.cluster.conditions if item.type == GatewaySecured.__name__), None)
    closed = previous is not None and previous.status == "True"  # the http listener is already being closed
    # Requests that were sent before the last endpoint switched may still be on their way by http.
    finished = closed or _get_secured_time(observed) + observed.settle <= observed.now
    return (GatewaySecured.MUTUAL_TLS if finished else GatewaySecured.SWITCHING).condition(observed.now)


def _describe_unprotected(observed: Observed, serving: ClusterServing) -> str:
    """Return the message for a gateway that anyone can use, with the reason."""
    reason = serving.reason if observed.hub.is_desired else observed.hub.reason
    if serving.address is None:
        return reason
    message = f"Prompts travel to {serving.address} unencrypted, and anyone who reaches that address can use its models"
    return f"{message}: {reason}" if reason else message


def gateway_requeue(observed: Observed, serving: ClusterServing, secured: Condition) -> float | None:
    """Return the seconds until the next reconcile that no event will trigger; None when none is needed."""
    if secured.reason == GatewaySecured.SWITCHING.reason:
        return max((_get_secured_time(observed) + observed.settle - observed.now).total_seconds(), REQUEUE_SOON)
    if secured.status == "True" and serving.http:
        return REQUEUE_SOON  # http is closed in the reconcile after this condition was stored
    if (
        observed.hub.is_desired
        and serving.address
        and (delay := _compute_relay_delay(observed, serving.address)) > timedelta()
    ):
        return max(delay.total_seconds(), REQUEUE_SOON)
    return LEARNT.total_seconds() if observed.hub.is_desired and not observed.answers else None


def _get_secured_time(observed: Observed) -> datetime:
    """Return when GatewaySecured last became True or Unknown; now if it is False or missing."""
    conditions = (
        item for item in observed.cluster.conditions if item.type == GatewaySecured.__name__ and item.status != "False"
    )
    return next((item.last_transition_time for item in conditions), observed.now)
