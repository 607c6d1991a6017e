"""Plan one InferenceCluster, registered by its owner or created on a cloud: node pools, gateway and teardown.

Where Helm runs, an own ServingStack creates the gateway with its dependencies. Elsewhere, and where the operator has
already created the gateway directly, it keeps doing so, with the Envoy Gateway that is installed on the cluster.

Teardown order: replicas, which move elsewhere once the cluster is being deleted; their objects on the cluster; the
gateway and its dependencies; the finalizer. No plan changes a cluster that does not answer.
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
from modelplane_operator.clusters.cluster.plan.out_of_reach import plan_unreachable, plan_waiting
from modelplane_operator.clusters.cluster.plan.provisioned import plan_provisioned
from modelplane_operator.clusters.cluster.plan.registered import only_once
from modelplane_operator.clusters.cluster.plan.renewal import renewal
from modelplane_operator.clusters.cluster.plan.teardown import is_emptied, teardown

__all__ = ["CHILDREN", "ON_HUB", "ClusterState", "Observed", "Registered", "Secrets", "is_emptied", "plan"]


def plan(observed: Observed) -> Plan:
    """Return the plan of a cluster, with the token renewal first when that is due."""
    decided, next_renewal = _plan_cluster(observed), renewal(observed)
    if next_renewal is None:
        return decided
    wait = (next_renewal[0] - observed.now).total_seconds()
    # a token that cannot be renewed must not block the end of a deletion
    if LET_GO in decided.steps or is_emptied(decided.status):
        return decided
    if wait <= 0:  # first, so that no failure of another step can cost the operator its access
        return replace(decided, steps=(next_renewal[1], *decided.steps))
    requeue_after = wait if decided.requeue_after is None else min(wait, decided.requeue_after)
    return replace(decided, requeue_after=requeue_after)


def _plan_cluster(observed: Observed) -> Plan:
    """Return the plan of a cluster without the renewal of its token."""
    if observed.cluster.metadata.deletion_timestamp is not None:
        return teardown(observed)
    source = observed.cluster.spec.cluster.source
    if source in INFRASTRUCTURE:
        return plan_provisioned(observed, _plan_reachable)
    if source != "Existing":
        message = (
            f"the operator does not create clusters on {source}: create it there yourself, and add it with `source:"
            " Existing`"
        )
        return plan_waiting(observed, ClusterReady.UNSUPPORTED_SOURCE, message)
    return _plan_reachable(observed)


def _plan_reachable(observed: Observed) -> Plan:
    """Return the plan of a cluster that has a kubeconfig, by how far the operator can read it."""
    if not observed.connected and observed.kubeconfig is not None:
        return plan_waiting(observed, ClusterReady.INVALID_KUBECONFIG, str(observed.kubeconfig))
    if observed.unreachable is not None:
        return plan_unreachable(observed, observed.unreachable)
    if observed.forbidden is not None:
        message = (
            f"the operator lacks a permission on {observed.display_name}: {observed.forbidden}; apply the access "
            "manifest there again"
        )
        return replace(plan_waiting(observed, ClusterReady.NOT_PERMITTED, message), requeue_after=REQUEUE_AFTER)
    if observed.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return only_once(observed, observed.state) or in_service(observed, observed.state)
