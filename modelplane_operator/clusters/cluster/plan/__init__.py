"""One cluster, that you bring or a cloud makes: what models can count on there, its gateway, and how it goes.

Where charts can be installed, a ServingStack of ours makes the gateway and all that it needs. Elsewhere, and where we
have made the gateway already, we make it ourselves, of the Envoy Gateway that is there.

It is torn down in this order: replicas, which are placed elsewhere once it is being deleted; their objects there; the
gateway and what it needs; our finalizer. Nothing is decided about a cluster that does not answer.
"""

from __future__ import annotations

from dataclasses import replace

from kubeloop.plan import LET_GO, Plan
from modelplane_operator.api.inference_cluster import ClusterReady
from modelplane_operator.clouds.render import INFRASTRUCTURE
from modelplane_operator.clusters.cluster.plan.in_service import in_service
from modelplane_operator.clusters.cluster.plan.observed import (
    CHILDREN,
    ON_HUB,
    REQUEUE_AFTER,
    REQUEUE_SOON,
    ClusterState,
    Observed,
    Registered,
    Secrets,
)
from modelplane_operator.clusters.cluster.plan.out_of_reach import unreachable, waiting
from modelplane_operator.clusters.cluster.plan.provisioned import provisioned
from modelplane_operator.clusters.cluster.plan.registered import only_once
from modelplane_operator.clusters.cluster.plan.renewal import renewal
from modelplane_operator.clusters.cluster.plan.teardown import is_emptied, teardown

__all__ = ["CHILDREN", "ON_HUB", "ClusterState", "Observed", "Registered", "Secrets", "is_emptied", "plan"]


def plan(seen: Observed) -> Plan:
    decided, due = _decided(seen), renewal(seen)
    if due is None:
        return decided
    wait = (due[0] - seen.now).total_seconds()
    if LET_GO in decided.steps or is_emptied(decided.status):  # which a token that cannot be had must not hold up
        return decided
    if wait <= 0:  # before all else there: whatever else fails must not lock us out
        return replace(decided, steps=(due[1], *decided.steps))
    requeue_after = wait if decided.requeue_after is None else min(wait, decided.requeue_after)
    return replace(decided, requeue_after=requeue_after)


def _decided(seen: Observed) -> Plan:
    if seen.cluster.metadata.deletion_timestamp is not None:
        return teardown(seen)
    source = seen.cluster.spec.cluster.source
    if source in INFRASTRUCTURE:
        return provisioned(seen, _reached)
    if source != "Existing":
        words = f"clusters on {source} cannot be made yet; bring one with `source: Existing`"
        return waiting(seen, ClusterReady.UNSUPPORTED_SOURCE, words)
    return _reached(seen)


def _reached(seen: Observed) -> Plan:
    if not seen.connected and seen.kubeconfig is not None:
        return waiting(seen, ClusterReady.INVALID_KUBECONFIG, str(seen.kubeconfig))
    if seen.unreachable is not None:
        return unreachable(seen, seen.unreachable)
    if seen.forbidden is not None:
        words = (
            f"the operator lacks a permission on {seen.named}: {seen.forbidden}; apply the access manifest there again"
        )
        return replace(waiting(seen, ClusterReady.NOT_PERMITTED, words), requeue_after=REQUEUE_AFTER)
    if seen.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return only_once(seen, seen.state) or in_service(seen, seen.state)
