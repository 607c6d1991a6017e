"""Back off separately for each cluster that rejects a write for a ModelCache. The status stores the backoff.

Other clusters of the cache are neither delayed nor called more often. The next attempt is immediate after an edit
of the cache, and after the cluster was unreachable.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from kubeloop.backoff import Backoff
from modelplane_operator.api.model_cache import CachedCluster
from modelplane_operator.models.cache.cached_cluster import ClusterPlan, Observed, edited

PACE: Final = Backoff(first=2.0, longest=300.0)
"""Backoff between attempts on one cluster."""
TERMINAL: Final = 30.0  # such an error does not resolve by itself
"""Minimum seconds between attempts after an error that only a user can resolve."""


def paced(seen: Observed, look: ClusterPlan) -> ClusterPlan:
    """Return the plan of a cluster, without steps while the cluster is backing off, and with its last rejection."""
    last, failure = seen.cache.on(look.told.name), seen.refusals.get(look.told.name)
    previous = last.refusals or 0 if last else 0
    if failure is not None:
        error = failure.error
        pause = PACE.delay(previous + 1, 1.0, at_least=error.retry_after)
        next_at = seen.now.replace(microsecond=0) + timedelta(seconds=pause if error.retry else max(pause, TERMINAL))
        remedy = "" if error.retry else "mend that there, and edit the cache to have it tried at once"
        clauses = (f"a write has failed: {failure.in_our_words()}", remedy, look.told.message)
        message = "; ".join(filter(None, clauses))[:1000]
        update = {"message": message, "refusals": previous + 1, "next_attempt": next_at}
    elif (look.steps or look.told.refusals) and (next_at := _backoff_end(seen, last)):
        update = {"message": last and last.message, "refusals": previous, "next_attempt": next_at}
    else:
        return look
    wait = max((next_at - seen.now).total_seconds(), 1.0)
    requeue_after = wait if look.requeue_after is None else min(wait, look.requeue_after)
    return replace(look, told=look.told.model_copy(update=update), steps=(), requeue_after=requeue_after)


def _backoff_end(observed: Observed, last: CachedCluster | None) -> datetime | None:
    """Return the time until which a cluster is backing off; None if it may be called."""
    next_at = last.next_attempt if last and last.refusals else None
    return next_at if next_at and next_at > observed.now and not edited(observed.cache) else None
