"""A cluster that has refused something for a cache is asked again at a pace of its own, which its status keeps.

The cache's other clusters neither wait for that nor have it asked more often. It is asked at once when somebody has
edited the cache, and when it was away meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from kubeloop.backoff import Backoff
from modelplane_operator.api.model_cache import CachedCluster
from modelplane_operator.models.cache.cached_cluster import ClusterPlan, Observed, edited

PACE: Final = Backoff(first=2.0, longest=300.0)
TERMINAL: Final = 30.0  # seconds at least for what only somebody's help mends


def paced(seen: Observed, look: ClusterPlan) -> ClusterPlan:
    """The same, without steps while the cluster is not to be asked again, and with what it has refused."""
    last, failure = seen.cache.on(look.told.name), seen.refusals.get(look.told.name)
    before = last.refusals or 0 if last else 0
    if failure is not None:
        error = failure.error
        pause = PACE.delay(before + 1, 1.0, at_least=error.retry_after)
        due = seen.now.replace(microsecond=0) + timedelta(seconds=pause if error.retry else max(pause, TERMINAL))
        remedy = "" if error.retry else "mend that there, and edit the cache to have it tried at once"
        words = (f"a write has failed: {failure.in_our_words()}", remedy, look.told.message)
        message = "; ".join(filter(None, words))[:1000]
        told = {"message": message, "refusals": before + 1, "next_attempt": due}
    elif (look.steps or look.told.refusals) and (due := _held_until(seen, last)):
        told = {"message": last and last.message, "refusals": before, "next_attempt": due}
    else:
        return look
    wait = max((due - seen.now).total_seconds(), 1.0)
    requeue_after = wait if look.requeue_after is None else min(wait, look.requeue_after)
    return replace(look, told=look.told.model_copy(update=told), steps=(), requeue_after=requeue_after)


def _held_until(seen: Observed, last: CachedCluster | None) -> datetime | None:
    """Until when a cluster that has refused something is left alone; None when it may be asked."""
    due = last.next_attempt if last and last.refusals else None
    return due if due and due > seen.now and not edited(seen.cache) else None
