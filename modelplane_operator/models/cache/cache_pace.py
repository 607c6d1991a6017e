"""Back off separately for each cluster that rejects a write for a ModelCache. The status stores the backoff.

Other clusters of the cache are neither delayed nor called more often. The next attempt is immediate after an edit
of the cache, and after the cluster was unreachable.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from kubeloop.backoff import Backoff
from modelplane_operator.api.model_cache import ArtifactReady
from modelplane_operator.models.cache.cached_cluster import ClusterPlan, Observed, is_edited

PACE: Final = Backoff(first=2.0, longest=300.0)
"""Backoff between attempts on one cluster."""
FAILED: Final = ArtifactReady.FAILED.reason
TERMINAL: Final = 30.0  # such an error does not resolve by itself
"""Minimum seconds between attempts after an error that only a user can resolve."""


def apply_backoff(observed: Observed, plan: ClusterPlan) -> ClusterPlan:
    """Return the plan of a cluster, without steps while the cluster is backing off, and with its last rejection."""
    last, failure = observed.cache.on(plan.row.name), observed.refusals.get(plan.row.name)
    previous = last.refusals or 0 if last else 0
    if failure is not None:
        error = failure.error
        pause = PACE.delay(previous + 1, 1.0, at_least=error.retry_after)
        next_at = observed.now.replace(microsecond=0) + timedelta(
            seconds=pause if error.retry else max(pause, TERMINAL)
        )
        remedy = "" if error.retry else "mend that there, and edit the cache to have it tried at once"
        clauses = (f"a write has failed: {failure.message_for_tenants()}", remedy, plan.row.message)
        message = "; ".join(filter(None, clauses))[:1000]
        update = {"message": message, "reason": FAILED, "refusals": previous + 1, "next_attempt": next_at}
    elif (
        (plan.steps or plan.row.refusals)
        and last
        and last.refusals
        and (next_at := last.next_attempt)
        and next_at > observed.now
        and not is_edited(observed.cache)
    ):
        update = {"message": last.message, "reason": FAILED, "refusals": previous, "next_attempt": next_at}
    else:
        return plan
    wait = max((next_at - observed.now).total_seconds(), 1.0)
    requeue_after = wait if plan.requeue_after is None else min(wait, plan.requeue_after)
    return replace(plan, row=plan.row.model_copy(update=update), steps=(), requeue_after=requeue_after)
